"""What a simulator adapter provides. Nothing here imports torch or a simulator."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from rlvla3.messages import FieldSpec, Start
from rlvla3.settings import Settings
from rlvla3.transforms.meaning import Meaning

Observation = Mapping[str, npt.NDArray[Any]]
"""Raw observation of one env, by field name, exactly as the simulator gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSpec:
    """What an adapter offers, known without building an environment."""

    observation: tuple[FieldSpec, ...]
    """Raw observation fields of one env (images uint8 [H, W, 3], vectors float32)."""
    action_dim: int
    """A: real action dimensions, each in [-1, 1]."""
    tasks: tuple[str, ...]
    """Task names; ``Start.task`` indexes them."""
    instructions: tuple[str, ...]
    """One instruction for each task."""
    step_limits: tuple[int, ...]
    """Sub-steps after which an episode of each task is cut; 0: the simulator's own limit."""
    fingerprint: Mapping[str, str | int | float | bool]
    """What changes the pixels or the physics (camera, rendering, versions): kept in checkpoints."""
    needs_gl: bool = False
    """Whether MuJoCo renders its frames: a GL back-end is tried before anything starts."""
    endless: bool = False
    """Whether an episode without a step limit never ends, so that it cannot be evaluated."""
    recycle_after: int = 0
    """Episodes after which its process should give way to a fresh one, because resets leak memory that
    nothing else gives back; 0: any number. ``simulator.recycle_after`` overrides it."""
    meaning: Meaning | None = None
    """What the fields and the action are, so that policies that expect certain ones can be matched with
    them (``transforms.composing``); None: unknown, only a policy that takes anything can be used."""
    needs_cuda: str = ""
    """``option=value`` for which its envs need a CUDA device; empty: they need none."""
    exact_with: str = ""
    """``option=value`` with which equal starts would give bit-identical episodes; empty: they do. Without
    that nothing is evaluated or compared in groups."""
    waits: bool = False
    """Whether its envs wait for something outside (``WaitingEnv``): one lane then lets all of its
    slots wait at the same time."""
    steps_together: bool = False
    """Whether its env batches can only step as a whole (vectorised on a device). It then provides
    ``make_batch``, slots only shard inference, and no env can wait in mid-episode while others go on."""

    def faults(self) -> Iterator[str]:
        """What contradicts itself here or cannot be, a line each."""
        names = [field.name for field in self.observation]
        if not names or len(set(names)) < len(names):
            yield f"observation must have one field or more, each with a name of its own; it has {names}"
        if self.action_dim < 1:
            yield f"action_dim must be 1 or more; it is {self.action_dim}"
        if isinstance(self.tasks, str) or not self.tasks or len(set(self.tasks)) < len(self.tasks):
            yield f"tasks must be one name or more, all different; they are {self.tasks!r}"
        counts = len(self.tasks), len(self.instructions), len(self.step_limits)
        if len(set(counts)) > 1:
            yield "tasks, instructions and step_limits must be equally many; they are {}, {} and {}".format(
                *counts
            )
        if any(limit < 0 for limit in self.step_limits):
            yield f"step_limits must be 0 or more; they are {list(self.step_limits)}"
        plain = (str, int, float, bool)
        odd = [name for name, value in self.fingerprint.items() if not isinstance(value, plain)]
        if odd:
            yield f"fingerprint must hold texts, numbers, true or false; {', '.join(odd)} is none of these"
        for fault in self.meaning.faults(self.observation, self.action_dim) if self.meaning else ():
            yield f"{fault}; mend its meaning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Outcome of one sub-step of one env."""

    reward: float
    terminated: bool
    """A true end of the task: nothing is bootstrapped after it."""
    truncated: bool
    """Cut by a limit: the value of the final observation is bootstrapped."""
    success: bool


class Env(Protocol):
    """One environment. Used by one thread only; never pickled; built where it is used."""

    def reset(self, start: Start, step_limit: int) -> bool | None:
        """Go to a fixed initial state. Equal starts give bit-identical episodes.

        ``step_limit``: sub-steps after which a step reports the cut; 0 for the own limit.

        Returns:
            whether this state solves the task already, so that a success would say nothing of the policy;
            None where it never does.
        """
        ...

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action [A] in [-1, 1] (clipped by the adapter). No rendering."""
        ...

    def observe(self) -> Observation:
        """The current observation, rendered now. Called only when it will be used."""
        ...

    def picture(self) -> npt.NDArray[np.uint8]:
        """A frame [H, W, 3] for people (videos); may be larger than the policy's."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class WaitingEnv(Env, Protocol):
    """An env whose sub-steps wait for something outside (a device, a network, an emulated delay).

    It divides ``step`` in two, so that one lane can let many such envs wait at the same time.
    """

    def begin(self, action: npt.NDArray[np.float32]) -> float:
        """Begin a sub-step; the monotonic time (``time.monotonic``) from which ``finish`` will
        probably not wait, or 0 where it will not."""
        ...

    def finish(self) -> Step:
        """The outcome of the sub-step begun; waits if it is not there yet."""
        ...


class Expert(Protocol):
    """A scripted policy used only to make demonstrations; may see privileged state."""

    def act(self) -> npt.NDArray[np.float32]:
        """The expert's action [A] for the env's current state, clipped to [-1, 1]."""
        ...


class Simulator(Protocol):
    """An adapter: built from its own settings, describes itself, builds environments.

    One that needs something that may be missing (a package, a folder) can have a method ``require()`` that
    looks, without importing it, and raises a ``UserError`` with the remedy: a run asks before it starts.
    """

    Settings: ClassVar[type[Settings]]

    def __init__(self, settings: Any) -> None: ...

    @property
    def spec(self) -> SimulatorSpec:
        """What it offers, without building an environment."""
        ...

    def make(self) -> Env:
        """Build one environment (in the calling thread, which then owns it)."""
        ...

    def expert(self, env: Env) -> Expert:
        """The scripted expert for an env of this adapter.

        Raises:
            LookupError: this simulator has none, with the way to give demonstrations instead.
        """
        ...


class WholeBatchSimulator(Simulator, Protocol):
    """An adapter whose spec says ``steps_together``."""

    def make_batch(self, size: int) -> "EnvBatch":
        """Build an env batch of ``size`` envs (in the calling thread, which then owns it)."""
        ...


class EnvBatch(Protocol):
    """A group of envs stepped together by one lane. ``SerialBatch`` makes one of single envs;
    a simulator that steps its whole batch at once (on a GPU) provides its own (``WholeBatch``)."""

    size: int
    busy: int
    """Index of the env at work, or of the last one that was: names it when it hangs or fails."""

    def reset(self, index: int, start: Start, step_limit: int) -> bool | None:
        """``Env.reset`` of one env."""
        ...

    def begin(self, indices: Sequence[int], actions: npt.NDArray[np.float32]) -> float:
        """Begin one sub-step of the named envs, actions [n, A]; the monotonic time from which
        ``finish`` will probably not wait, or 0 where it only computes."""
        ...

    def finish(self, indices: Sequence[int]) -> Sequence[Step]:
        """Outcomes of the sub-step begun, in the same order."""
        ...

    def observe(self, indices: Sequence[int]) -> Sequence[Observation]:
        """``Env.observe`` of the named envs."""
        ...

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """``Env.picture`` of one env."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
