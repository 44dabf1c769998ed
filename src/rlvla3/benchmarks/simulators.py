"""How fast one env of each simulator is: state, pictures, and pictures as they are usually made.

Three ways of stepping take turns, so that a machine that is busy for a while slows all of them:

- ``state``: sub-steps without a look;
- ``image``: chunks with one look at the end of each, as rollouts of this system do;
- ``stock``: a look after every sub-step with the simulator's own rendering, as is usual.

The ratio of the last two is taken within each turn.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.costs import Costs
from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.metrics import Row
from rlvla3.simulators.api import EnvBatch
from rlvla3.simulators.chunking import SerialBatch, chunk_step
from rlvla3.simulators.packages import ENVIRONMENTS, PACKAGES
from rlvla3.simulators.registry import simulator_class

CHUNK = 5
"""C: sub-steps for each look."""
REPEATS = 5
BLOCK_S = 2.0
"""Seconds of each way in each turn, at least one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulator with its settings."""

    name: str
    kind: str
    options: Mapping[str, Any]
    environment: str = ""
    """Whose environment it is, of ``packages.ENVIRONMENTS``; empty: the simulator's own."""
    stock: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the usual rendering, on top of the others."""
    required: float | None = None
    """Least ratio of image to stock."""


CASES = (
    Case(name="reach/32px", kind="synthetic", options={"task": "reach"}),
    Case(
        name="metaworld/84px",
        kind="metaworld",
        options={"tasks": ["button-press-topdown-v3"], "image_size": 84},
        stock={"rendering": "stock"},
        required=15.0,
    ),
    Case(
        name="pusht/84px",
        kind="gymnasium",
        environment="pusht",
        options={"env_id": "gym_pusht:gym_pusht/PushT-v0", "image": "render", "image_size": 84},
    ),
    Case(
        name="libero/84px",
        kind="libero",
        options={"suite": "libero_spatial", "tasks": [0], "image_size": 84},
        stock={"rendering": "stock"},
        required=6.0,
    ),
    Case(
        name="maniskill/84px",
        kind="maniskill",
        options={"tasks": ["PickCube-v1"], "image_size": 84},
    ),
)


def lacking(case: Case) -> str:
    """Why a case cannot be measured here, and what to do; empty if nothing is missing."""
    if case.kind not in PACKAGES:
        return f"this version has no simulator {case.kind}"
    package = ENVIRONMENTS[case.environment] if case.environment else PACKAGES[case.kind]
    return "" if package.importable else f"{package.module} is not installed; {package.command}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured of one case. Speeds have one number for each turn, latencies one for each event."""

    case: Case
    state: tuple[float, ...]
    """Sub-steps per second without a look."""
    image: tuple[float, ...]
    """The same with one look for each chunk."""
    stock: tuple[float, ...]
    """The same with a look for each sub-step and the usual rendering."""
    sub_step_s: tuple[float, ...]
    observe_s: tuple[float, ...]
    reset_s: tuple[float, ...]

    @property
    def speedups(self) -> tuple[float, ...]:
        """Image over stock, turn by turn."""
        return tuple(image / stock for image, stock in zip(self.image, self.stock, strict=True))

    @property
    def speedup(self) -> float:
        """Their median."""
        return float(np.median(self.speedups))

    def costs(self) -> Costs:
        """The cost model: what the virtual runtime spends in place of this simulator."""
        mean_s = float(np.mean(self.sub_step_s))
        return Costs(
            sub_step_s=mean_s,
            sub_step_cv=float(np.std(self.sub_step_s)) / mean_s,
            observe_s=float(np.mean(self.observe_s)),
            reset_s=float(np.mean(self.reset_s)),
        )

    def rows(self) -> list[Row]:
        """All figures, with what is required of them."""
        name, costs = self.case.name, self.costs()
        rows = [
            Row(name=f"{name}/speedup", value=self.speedup, unit="", bound=self.case.required),
            Row(name=f"{name}/speedup_least", value=min(self.speedups), unit=""),
        ]
        for way in ("state", "image", "stock"):
            speeds = getattr(self, way)
            rows.append(Row(name=f"{name}/{way}_steps_s", value=float(np.median(speeds)), unit="steps/s"))
            # A slow turn has few steps per second: its 95th percentile of time is the 5th of speed.
            rows.append(Row(name=f"{name}/{way}_steps_s_p05", value=_quantile(speeds, 5), unit="steps/s"))
        for what in ("sub_step", "observe", "reset"):
            times_s = getattr(self, f"{what}_s")
            for label, percent in (("median", 50), ("p95", 95), ("p99", 99)):
                value_ms = 1000 * _quantile(times_s, percent)
                rows.append(Row(name=f"{name}/{what}_ms_{label}", value=value_ms, unit="ms"))
        for cost, value in measured_costs(costs).items():
            rows.append(
                Row(name=f"{name}/costs/{cost}", value=value, unit="" if cost.endswith("cv") else "s")
            )
        return rows


def measured_costs(costs: Costs) -> dict[str, float]:
    """The fields of a cost model that are of simulators: a profile for ``rlvla3 check --profile``."""
    fields = ("sub_step_s", "sub_step_cv", "observe_s", "reset_s")
    return {name: value for name, value in dataclasses.asdict(costs).items() if name in fields}


def _quantile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))


class Stepper:
    """One env that is stepped with random actions, from one episode into the next."""

    def __init__(self, batch: EnvBatch, action_dim: int) -> None:
        """``batch``: of one env; it is reset now."""
        self._batch = batch
        self._action_dim = action_dim
        self._random = np.random.default_rng(0)
        self._state = 0
        self.sub_step_s: list[float] = []
        self.observe_s: list[float] = []
        self.reset_s: list[float] = []
        self._began_s = 0.0
        self._reset()

    def _reset(self) -> None:
        start = Start(task=0, split="train", state=self._state)
        began_s = time.perf_counter()
        self._batch.reset(0, start, 0)
        self.reset_s.append(time.perf_counter() - began_s)
        self._state += 1

    def _look(self) -> None:
        began_s = time.perf_counter()
        self._batch.observe((0,))
        self.observe_s.append(time.perf_counter() - began_s)

    def _stepped(self, _: int, *, look: bool) -> None:
        self.sub_step_s.append(time.perf_counter() - self._began_s)
        if look:
            self._look()
        self._began_s = time.perf_counter()

    def chunk(self, *, looks: bool, every: bool) -> tuple[int, float]:
        """One chunk with a look at its end, or after every sub-step: (executed sub-steps, seconds).

        The reset after an episode's end is not part of the time.
        """
        actions: npt.NDArray[np.float32] = self._random.uniform(-1, 1, (1, CHUNK, self._action_dim)).astype(
            np.float32
        )
        on_sub_step = functools.partial(self._stepped, look=looks and every)
        began_s = self._began_s = time.perf_counter()
        [result] = chunk_step(self._batch, (0,), actions, on_sub_step)
        if looks and not every:
            self._look()
        seconds = time.perf_counter() - began_s
        if result.terminated or result.truncated:
            self._reset()
        return result.sub_steps, seconds

    def speed(self, block_s: float, *, looks: bool, every: bool = False) -> float:
        """Sub-steps per second over ``block_s`` seconds."""
        steps, spent_s = 0, 0.0
        while spent_s < block_s:
            executed, seconds = self.chunk(looks=looks, every=every)
            steps, spent_s = steps + executed, spent_s + seconds
        return steps / spent_s

    def warm_up(self) -> None:
        """Step, look and reset once, and leave out what that took: the first time compiles and uploads."""
        self.chunk(looks=True, every=True)
        for times in (self.sub_step_s, self.observe_s, self.reset_s):
            times.clear()
        self._reset()

    def close(self) -> None:
        """Free the env."""
        self._batch.close()


def measure(case: Case, repeats: int = REPEATS, block_s: float = BLOCK_S) -> Figures:
    """Measure one case that lacks nothing.

    Raises:
        UserError: the simulator cannot be used here.
    """
    used, usual = _stepper(case, {}), _stepper(case, case.stock)
    try:
        for stepper in (used, usual):
            stepper.warm_up()
        return _taking_turns(case, used, usual, repeats, block_s)
    finally:
        used.close()
        usual.close()


def _taking_turns(case: Case, used: Stepper, usual: Stepper, repeats: int, block_s: float) -> Figures:
    ways: dict[str, Callable[[], float]] = {
        "state": lambda: used.speed(block_s, looks=False),
        "image": lambda: used.speed(block_s, looks=True),
        "stock": lambda: usual.speed(block_s, looks=True, every=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            speeds[name].append(way())
    return Figures(
        case=case,
        **{name: tuple(found) for name, found in speeds.items()},
        sub_step_s=tuple(used.sub_step_s),
        observe_s=tuple(used.observe_s),
        reset_s=tuple(used.reset_s),
    )


def _stepper(case: Case, changes: Mapping[str, Any]) -> Stepper:
    cls = simulator_class(case.kind)
    try:
        settings = cls.Settings.model_validate({**case.options, **changes})
    except ValueError as error:
        raise UserError(f"{case.name}: {' '.join(str(error).split())}") from error
    simulator = cls(settings)
    spec = simulator.spec
    if spec.needs_gl:
        from rlvla3.simulators.mujoco_rendering import require_backend

        require_backend()
    return Stepper(SerialBatch([simulator.make()]), spec.action_dim)
