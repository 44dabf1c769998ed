"""Published ways to evaluate on LIBERO, as they were in the sources named here."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlvla3.simulators.protocols import EvaluationProtocol

STATES = 50
"""Fixed initial states of each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    source: str
    limits: Mapping[str, int]
    """Suite -> sub-steps after settling."""
    settle_steps: int
    seed: int
    replan: int


_OPENPI = _Published(
    source="Physical-Intelligence/openpi 15a9616, examples/libero/main.py",
    limits={
        "libero_spatial": 220,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_10": 520,
        "libero_90": 400,
    },
    settle_steps=10,
    seed=7,
    replan=5,
)
_LEROBOT = _Published(
    source=(
        "huggingface/lerobot 7427f31, src/lerobot/envs/libero.py (limits, settling), docs/source/libero.mdx "
        "(re-planning), src/lerobot/configs/eval.py (seed)"
    ),
    limits={
        "libero_spatial": 280,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_10": 520,
        "libero_90": 400,
    },
    settle_steps=10,
    seed=1000,
    replan=10,
)
_RLINF = _Published(
    source=(
        "RLinf/RLinf a3816b5, examples/embodiment/config/env/libero_*.yaml (limits, seed), "
        "rlinf/envs/libero/libero_env.py (settling), evaluations/libero/*_openpi*_eval.yaml (re-planning)"
    ),
    limits={
        "libero_spatial": 240,
        "libero_object": 240,
        "libero_goal": 320,
        "libero_10": 512,
        "libero_90": 512,
    },
    settle_steps=15,
    seed=0,
    replan=5,
)
_RLINF_OFT = _Published(
    source=(
        "RLinf/RLinf a3816b5, examples/embodiment/config/libero_*_grpo_openvlaoft.yaml (limits), "
        "rlinf/envs/libero/libero_env.py (settling), "
        "examples/embodiment/config/model/openvla_oft.yaml (re-planning)"
    ),
    limits={
        "libero_spatial": 512,
        "libero_object": 512,
        "libero_goal": 512,
        "libero_10": 512,
        "libero_90": 512,
    },
    settle_steps=15,
    seed=0,
    replan=8,
)
PUBLISHED = {"openpi": _OPENPI, "lerobot": _LEROBOT, "rlinf": _RLINF, "rlinf-oft": _RLINF_OFT}
"""By the name that ``--protocol`` takes."""


def protocols(suite: str) -> Mapping[str, EvaluationProtocol]:
    """All of them, for one suite."""
    return {name: _for_suite(published, suite) for name, published in PUBLISHED.items()}


def _for_suite(published: _Published, suite: str) -> EvaluationProtocol:
    return EvaluationProtocol(
        source=published.source,
        episodes=STATES,
        replan=published.replan,
        options={
            "step_limits": published.limits[suite],
            "settle_steps": published.settle_steps,
            "seed": published.seed,
            "hard_reset": True,
            "limit_is": "truncated",
            "terminate_on_success": True,
        },
    )
