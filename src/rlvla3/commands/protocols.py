"""``rlvla3 eval --protocol``: a configuration made to follow a published protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlvla3.config import Config
from rlvla3.errors import UserError
from rlvla3.simulators.protocols import EvaluationProtocol
from rlvla3.simulators.registry import simulator_class

_EPISODES = "evaluation.episodes"


def follow(config: Config, name: str, overrides: Sequence[str]) -> tuple[Config, str]:
    """What a protocol makes of a configuration, and the protocol in words, to be shown with the rate.

    Args:
        config: as it was saved, with the overrides.
        name: of the protocol.
        overrides: what the user typed: nothing of it may be what the protocol fixes.

    Raises:
        UserError: the simulator has no such protocol, or an override contradicts it.
    """
    protocol = _find(config, name)
    typed = [text.partition("=")[0].strip() for text in overrides]
    fixed = [f"simulator.options.{option}" for option in protocol.options]
    for path in typed:
        if path in (*fixed, "evaluation.step_limit", "evaluation.replan"):
            raise UserError(f"{path}: is fixed by --protocol {name}; leave one of them out")
    episodes = config.evaluation.episodes if _EPISODES in typed else protocol.episodes
    if episodes > protocol.episodes:
        raise UserError(
            f"{_EPISODES} = {episodes}: --protocol {name} has {protocol.episodes} states of each task; "
            f"use at most {protocol.episodes}"
        )
    replan = min(protocol.replan, config.simulator.chunk)
    changed = {"episodes": episodes, "replan": replan, "step_limit": "task"}
    options = _changed(config.simulator.options, protocol.options)
    made = config.model_copy(
        update={
            "simulator": config.simulator.model_copy(update={"options": options}),
            "evaluation": _changed(config.evaluation, changed),
        }
    )
    return made, _in_words(name, protocol, made)


def _find(config: Config, name: str) -> EvaluationProtocol:
    kind = config.simulator.kind
    simulator = simulator_class(kind)(config.simulator.options)
    known: Mapping[str, EvaluationProtocol] = getattr(simulator, "protocols", dict)()
    if name not in known:
        has = f"has the protocols {', '.join(known)}" if known else "has no protocols; leave it out"
        raise UserError(f"--protocol {name}: simulator.kind = {kind} {has}")
    return known[name]


def _changed(settings: Any, different: Mapping[str, Any]) -> Any:
    return type(settings).model_validate(settings.model_dump() | dict(different))


def _in_words(name: str, protocol: EvaluationProtocol, config: Config) -> str:
    """The protocol as one line; whatever is not as it says is named."""
    replan, episodes = config.evaluation.replan, config.evaluation.episodes
    notes = [f"{option} {value}" for option, value in protocol.options.items()]
    notes.append(
        f"re-planned every {replan} sub-steps"
        + (f" and not {protocol.replan}: the policy gives no more" if replan < protocol.replan else "")
    )
    notes.append(
        f"{episodes} states of each task"
        + (f" and not {protocol.episodes}" if episodes < protocol.episodes else "")
    )
    return f"protocol {name} ({', '.join(notes)}; {protocol.source})"
