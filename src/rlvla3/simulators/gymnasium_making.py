"""Building a Gymnasium environment from what a setting names. Gymnasium is imported here, when it is used."""

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rlvla3.errors import UserError
from rlvla3.plugins import USERS_FAULTS, in_words
from rlvla3.simulators.packages import ENVIRONMENTS

NAMESPACES = {"gym_pusht": "gym_pusht", "gym_aloha": "gym_aloha", "gym_xarm": "gym_xarm", "ALE": "ale_py"}
"""Namespaces of ids, with the package that registers them: it is imported without being named."""
_METHODS = ("reset", "step", "close", "action_space", "observation_space")
_DRAWN = "rgb_array"


def make(env_id: str, arguments: Mapping[str, Any], what: str) -> Any:
    """A new environment that can draw itself where its class says that it can.

    Args:
        env_id: a registered id, ``module:ID`` to import the module that registers it, or
            ``module:attribute`` of a class or function that makes it.
        arguments: for the environment; with ``render_mode`` it is the user who says how it draws.
        what: the setting that names it, for messages.

    Raises:
        UserError: Gymnasium is missing, the environment cannot be made, or its actions are no bounded box.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise UserError(
            f"simulator gymnasium needs its extra: pip install 'rlvla3[gymnasium]' ({error})"
        ) from error
    # Libraries greet, and warn of what this package checks itself, on outputs that belong to the command.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    gymnasium.logger.min_level = max(gymnasium.logger.min_level, gymnasium.logger.ERROR)
    try:
        env: Any = _made(gymnasium, env_id, dict(arguments))
        lacking = _lacking(env)
    except USERS_FAULTS as error:
        raise UserError(
            f"{what} = {env_id!r} cannot be made: {in_words(error)}; {_remedy(env_id)}"
        ) from error
    if lacking:
        raise UserError(
            f"{what} = {env_id!r} gives {type(env).__name__}, which is no Gymnasium environment: it has no "
            f"{', '.join(lacking)}; name a class or function that makes one"
        )
    _check_observations(gymnasium, env, env_id, what)
    _check_actions(gymnasium, env, env_id, what)
    return env


def _made(gymnasium: Any, env_id: str, arguments: dict[str, Any]) -> Any:
    module_name, colon, name = env_id.partition(":")
    namespace = env_id.partition("/")[0]
    if colon:
        module = importlib.import_module(module_name)
        if name not in gymnasium.registry and name.isidentifier():
            factory = getattr(module, name)
            return factory(**(_drawing(factory) | arguments))
        env_id = name
    elif namespace in NAMESPACES:
        importlib.import_module(NAMESPACES[namespace])
    return gymnasium.make(env_id, **(_drawing(_creator(gymnasium, env_id)) | arguments))


def _creator(gymnasium: Any, env_id: str) -> Any:
    """The class or function behind an id; None where the id says nothing of it, or is unknown."""
    entry_point = getattr(gymnasium.registry.get(env_id), "entry_point", None)
    if not isinstance(entry_point, str):
        return entry_point
    return gymnasium.envs.registration.load_env_creator(entry_point)


def _drawing(creator: Any) -> dict[str, str]:
    """The argument that has an environment draw pictures, for a class that says that it knows it."""
    metadata = getattr(creator, "metadata", None)
    modes = metadata.get("render_modes", ()) if isinstance(metadata, Mapping) else ()
    if _DRAWN not in modes or "render_mode" not in inspect.signature(creator).parameters:
        return {}
    return {"render_mode": _DRAWN}


def own_step_limit(env: Any) -> int:
    """Sub-steps after which the environment cuts an episode, as its registration says; 0: it does not say."""
    return getattr(getattr(env, "spec", None), "max_episode_steps", None) or 0


def draws(env: Any) -> bool:
    """Whether ``env.render()`` gives a picture."""
    return getattr(env, "render_mode", None) == _DRAWN


def _remedy(env_id: str) -> str:
    namespace, slash, _ = env_id.partition("/")
    if slash and ":" not in env_id and namespace not in NAMESPACES:
        return f"name the module that registers it too, as in my_module:{env_id}"
    module = NAMESPACES.get(namespace, "")
    if module and importlib.util.find_spec(module) is None:
        known = {package.module: package.command for package in ENVIRONMENTS.values()}
        install = f"{sys.executable} -m pip install {module.replace('_', '-')}"
        return f"install it: {known.get(module, install)}"
    return "correct env_id or simulator.options.arguments"


def _lacking(env: Any) -> list[str]:
    return [name for name in _METHODS if not hasattr(env, name)]


def _check_observations(gymnasium: Any, env: Any, env_id: str, what: str) -> None:
    if isinstance(env.observation_space, gymnasium.spaces.Space):
        return
    close(env)
    raise UserError(
        f"{what} = {env_id!r}: its observation_space must be a space of Gymnasium, it is "
        f"{env.observation_space!r}; mend the environment"
    )


def close(env: Any) -> None:
    """Close an environment after a fault, which is the one to tell."""
    with contextlib.suppress(*USERS_FAULTS):
        env.close()


def _check_actions(gymnasium: Any, env: Any, env_id: str, what: str) -> None:
    space = env.action_space
    box = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.is_bounded()
    if box and (space.low < space.high).all():
        return
    close(env)
    raise UserError(
        f"{what} = {env_id!r}: actions must be a bounded Box [A] with low below high, they are {space}; "
        "choose another one or wrap it"
    )


def provenance(env: Any) -> dict[str, str]:
    """Versions of Gymnasium and of the package that the environment is from, where it has one."""
    package = type(env.unwrapped).__module__.partition(".")[0]
    found = {}
    for name in ("gymnasium", package):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
