"""Who acts in ``rlvla3 play``: an expert, random actions, or a policy with its weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlvla3.assembly import Assembly
from rlvla3.commands.evaluating import saved_config
from rlvla3.config import Config
from rlvla3.devices import resolve_device
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.messages import Start
from rlvla3.policies.api import NoiseKey
from rlvla3.simulators.api import Env, Simulator


class Player(Protocol):
    """Chooses actions for one env."""

    def begin(self, start: Start, limit: int) -> None:
        """An episode begins; ``limit``: its step limit, 0 for the simulator's own."""
        ...

    def act(self, elapsed: int) -> npt.NDArray[np.float32]:
        """The next actions [C, A], after ``elapsed`` sub-steps."""
        ...


class ExpertPlayer:
    """The simulator's scripted expert, one sub-step at a time."""

    def __init__(self, simulator: Simulator, env: Env) -> None:
        """Find it.

        Raises:
            UserError: there is none.
        """
        try:
            self._expert = simulator.expert(env)
        except LookupError as error:
            raise UserError(
                f"--policy expert: {error}; or see what random actions do: --policy random"
            ) from error

    def begin(self, start: Start, limit: int) -> None:
        """Nothing to prepare."""

    def act(self, elapsed: int) -> npt.NDArray[np.float32]:
        """Its action, as [1, A]."""
        return self._expert.act()[None]


class RandomPlayer:
    """Uniform random actions, the same ones for equal seeds and starts."""

    def __init__(self, action_dim: int, seed: int) -> None:
        self._action_dim = action_dim
        self._seed = seed
        self._random = np.random.default_rng(seed)

    def begin(self, start: Start, limit: int) -> None:
        """Begin with the start's own random numbers."""
        self._random = np.random.default_rng([self._seed, start.task, start.state])

    def act(self, elapsed: int) -> npt.NDArray[np.float32]:
        """One action, as [1, A]."""
        return self._random.uniform(-1, 1, (1, self._action_dim)).astype(np.float32)


class PolicyPlayer:
    """A policy with the weights of a checkpoint, acting without exploration noise."""

    def __init__(self, weights: Path, simulated: Config, env: Env, allow_code: bool) -> None:
        """Build it as its own configuration says, for the simulator of ``simulated``.

        Raises:
            UserError: the checkpoint is damaged, names code, or is of another simulator set-up.
        """
        saved = saved_config(weights, [], allow_code=allow_code)
        own = {"kind": simulated.simulator.kind, "options": simulated.simulator.options}
        simulator = saved.simulator.model_copy(update=own)
        config = saved.model_copy(update={"simulator": simulator})
        assembly = Assembly(config, training=False)
        source = checkpoint.find(weights)
        fingerprint = checkpoint.describe(source).fingerprint
        checkpoint.check_fingerprint(source, fingerprint, assembly.fingerprint())
        self._model = _model(assembly, weights)
        self._seed = config.seed
        self._env = env
        self._start = Start(task=0, split="held_out", state=0)
        self._limit = 0
        self._chunk = 0

    def begin(self, start: Start, limit: int) -> None:
        """Count chunks from here."""
        self._start, self._limit, self._chunk = start, limit, 0

    def act(self, elapsed: int) -> npt.NDArray[np.float32]:
        """A chunk of actions for what the env shows now."""
        observation = {name: array[None] for name, array in self._env.observe().items()}
        observation["task"] = np.array([self._start.task], np.int64)
        share = elapsed / self._limit if self._limit else 0.0
        observation["elapsed"] = np.array([share], np.float32)
        key = NoiseKey(seed=self._seed, episode=self._start.state, chunk=self._chunk)
        self._chunk += 1
        actions: npt.NDArray[np.float32] = self._model.act(observation, (key,), False)["action"][0]
        return actions


def _model(assembly: Assembly, weights: Path) -> Any:
    from rlvla3.learner.starting import starting_model

    config = assembly.config
    # A policy without torch does not import it.
    emulated = config.policy.kind == "emulated"
    device = "cpu" if emulated else resolve_device("generator.device", config.generator.device)
    return starting_model(
        assembly.policy, config.policy, device, config.seed, use="evaluate", weights=str(weights)
    )


def player(
    name: str, assembly: Assembly, env: Env, *, allow_code: bool, known: Sequence[str] = ("expert", "random")
) -> Player:
    """What ``--policy`` names.

    Raises:
        UserError: there is no such expert or checkpoint.
    """
    if name == "expert":
        return ExpertPlayer(assembly.simulator, env)
    if name == "random":
        return RandomPlayer(assembly.spec.action_dim, assembly.config.seed)
    if not Path(name).exists():
        raise UserError(f"--policy {name}: no such file or folder; give {', '.join(known)} or a run folder")
    return PolicyPlayer(Path(name), assembly.config, env, allow_code)
