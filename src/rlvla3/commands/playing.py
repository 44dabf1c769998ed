"""``rlvla3 play``: episodes of one task as a video."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from rlvla3.assembly import Assembly
from rlvla3.commands.players import Player, player
from rlvla3.commands.running import require_gl, require_simulator
from rlvla3.config import RECIPES, Config, load_config
from rlvla3.config_loading import Branch, build, did_you_mean, override, parse, recipe_names
from rlvla3.config_loading.types import is_list
from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.metrics import Row, write_figures
from rlvla3.run_folder import make_folder
from rlvla3.simulators.chunking import SerialBatch, chunk_step
from rlvla3.simulators.packages import PACKAGES
from rlvla3.simulators.registry import BUILT_IN, env_of, simulator_class
from rlvla3.video import VideoWriter

_FEW = 10
"""Tasks whose names fit into one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode."""

    state: int
    success: bool
    sub_steps: int
    total_reward: float


def command(
    simulator: str,
    task: str,
    overrides: Sequence[str],
    *,
    policy: str,
    episodes: int,
    first: Start,
    out: Path,
    fps: int,
    json: Path | None,
    allow_code: bool,
) -> None:
    """Play episodes from ``first.state`` on and write them, one after the other, into one video.

    Raises:
        UserError: no such simulator, task, expert or checkpoint, or nothing can be drawn or written.
    """
    if out.suffix != ".mp4" or out.is_dir():
        raise UserError(f"--out {out}: must be the name of an mp4 file, such as play.mp4")
    assembly = Assembly(configuration(simulator, task, overrides), training=False)
    index = _index(task, assembly)
    limit = assembly.spec.step_limits[index]
    if assembly.spec.endless and not limit:
        raise UserError(
            f"{task}: an episode has no end of its own; give it one with simulator.options.step_limits=100"
        )
    require_simulator(assembly)
    require_gl(assembly)
    make_folder(out.parent)
    with env_of(assembly.config.simulator.kind, assembly.simulator) as env:
        who = player(policy, assembly, env, allow_code=allow_code)
        starts = [Start(task=index, split=first.split, state=first.state + i) for i in range(episodes)]
        played = _play(SerialBatch([env]), who, starts, limit, out, fps)
        succeeded = sum(each.success for each in played)
        typer.echo(f"{succeeded} of {episodes} succeeded; video in {out}")
    if json is not None:
        write_figures(json, _figures(played))


def configuration(simulator: str, task: str, overrides: Sequence[str]) -> Config:
    """The configuration of a recipe, or of a simulator by its kind, with the task chosen where it can be.

    Args:
        simulator: a built-in kind, ``module:attribute``, or a recipe's name or path.
        task: what is to be played.
        overrides: ``path=value`` texts.

    Raises:
        UserError: one line for each fault.
    """
    of_kind = simulator in BUILT_IN or (":" in simulator and not Path(simulator).exists())
    if of_kind:
        chosen = _chosen(simulator, task, overrides)
        tree = parse('{"simulator": {"kind": "synthetic"}}', "play")
        assert isinstance(tree, Branch)
        return build(Config, override(tree, [f"simulator.kind={simulator}", *chosen]), "play", {})
    recipes = recipe_names(RECIPES)
    if simulator not in recipes and not Path(simulator).exists():
        raise UserError(
            f"{simulator!r} is no simulator and no recipe; {did_you_mean(simulator, [*BUILT_IN, *recipes])}"
        )
    config = load_config(simulator, list(overrides))
    tasks, kind = Assembly(config, training=False).spec.tasks, config.simulator.kind
    chosen = list(overrides) if task in tasks else _chosen(kind, task, overrides)
    if chosen == list(overrides):
        return config
    try:
        return load_config(simulator, chosen)
    except UserError as error:
        raise UserError(
            f"{task!r} is no task of recipe {simulator}, whose settings are for {', '.join(tasks)}; play "
            f"one of these, or the task with the simulator's own settings: rlvla3 play {kind} {task}"
        ) from error


def _chosen(kind: str, task: str, overrides: Sequence[str]) -> list[str]:
    """The overrides with one that chooses the task; without where it is not known, or the user chose himself.

    A number is the one task that is played, whatever else was chosen.
    """
    package = PACKAGES.get(kind)
    if package is None:
        return [*overrides]
    name = f"simulator.options.{package.plays}"
    if _is_number(kind, task):
        return [*overrides, f"{name}=[{task}]"]
    if (package.tasks and task not in package.names) or any(
        text.replace(" ", "").startswith(f"{name}=") for text in overrides
    ):
        return [*overrides]
    field = simulator_class(kind).Settings.model_fields[package.plays]
    return [f'{name}=["{task}"]' if is_list(field.annotation) else f"{name}={task}", *overrides]


def _is_number(kind: str, task: str) -> bool:
    """Whether a task's number in its suite is given in place of its name."""
    return kind in PACKAGES and PACKAGES[kind].in_suites and task.isdecimal()


def _index(task: str, assembly: Assembly) -> int:
    tasks = assembly.spec.tasks
    if _is_number(assembly.config.simulator.kind, task):
        return 0
    if task in tasks:
        return tasks.index(task)
    kind = assembly.config.simulator.kind
    names = PACKAGES[kind].names if kind in PACKAGES else ()
    hint = did_you_mean(task, list(dict.fromkeys((*tasks, *names))))
    if len(names) > _FEW and hint.startswith("known"):
        hint = f"rlvla3 envs {kind} lists them"
    raise UserError(f"{task!r} is no task of simulator {kind}; {hint}")


def _play(
    batch: SerialBatch, who: Player, starts: Sequence[Start], limit: int, out: Path, fps: int
) -> list[Played]:
    played = []
    batch.reset(0, starts[0], limit)
    batch.picture(0)  # an env that cannot be drawn leaves an older video as it was
    with VideoWriter(out, fps) as video:
        for start in starts:
            played.append(_episode(batch, who, start, limit, video))
            typer.echo(_line(played[-1]))
    return played


def _episode(batch: SerialBatch, who: Player, start: Start, limit: int, video: VideoWriter) -> Played:
    batch.reset(0, start, limit)
    who.begin(start, limit)
    video.add(batch.picture(0))
    sub_steps, total_reward, success = 0, 0.0, False
    while True:
        actions = np.asarray(who.act(sub_steps), np.float32)[None]
        [result] = chunk_step(batch, [0], actions, lambda index: video.add(batch.picture(index)))
        sub_steps += result.sub_steps
        total_reward += sum(result.reward)
        success |= result.success
        if result.terminated or result.truncated:
            return Played(state=start.state, success=success, sub_steps=sub_steps, total_reward=total_reward)


def _line(played: Played) -> str:
    how = "success after" if played.success else "no success in"
    return f"state {played.state}: {how} {played.sub_steps} sub-steps, return {played.total_reward:.3f}"


def _figures(played: Sequence[Played]) -> list[Row]:
    count = len(played)
    values = {
        "success_rate": sum(each.success for each in played) / count,
        "return": sum(each.total_reward for each in played) / count,
        "sub_steps": sum(each.sub_steps for each in played) / count,
        "episodes": float(count),
    }
    return [Row(name=name, value=value, unit="", bound=None) for name, value in values.items()]
