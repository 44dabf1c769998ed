"""Parts that check every transition of a run: an env that knows the answer to its own observation,
and a learner that verifies each row it is given and writes down what it trained on."""

import dataclasses
import hashlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from rlvla3.algorithms.api import Groups, Needs
from rlvla3.errors import UserError
from rlvla3.learner.api import Slab, UpdateReport
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.learner.registry import LearnerContext
from rlvla3.messages import FieldSpec, Trajectory
from rlvla3.policies.api import PolicyInterface
from rlvla3.policies.emulated import Emulated, EmulatedModel, EmulatedSettings
from rlvla3.settings import Settings
from rlvla3.simulators.api import Observation, SimulatorSpec
from rlvla3.simulators.synthetic import SPLITS, DelayEnv, Synthetic, SyntheticSettings


class EchoEnv(DelayEnv):
    """``delay`` with the field ``echo`` (task, split, state, sub-step); an action that does not
    start with the echo of the last observation is an error."""

    def __init__(self, settings: SyntheticSettings) -> None:
        super().__init__(settings)
        self._asked = np.zeros(4, np.float32)

    def begin(self, action: np.ndarray) -> float:
        """Begin a sub-step with an action that answers this env's last observation."""
        if not np.array_equal(action[:4], self._asked):
            raise ValueError(f"action {action[:4]} does not answer observation {self._asked}")
        return super().begin(action)

    def observe(self) -> Observation:
        """``echo`` float32 [4], and a picture."""
        observation = super().observe()
        self._asked = np.array(observation["tag"])
        return {"echo": self._asked, "image": observation["image"]}

    def picture(self) -> np.ndarray:
        """A frame; it is no observation that an action could answer."""
        return np.asarray(super().observe()["image"])


class EchoSimulator(Synthetic):
    """The adapter of ``EchoEnv``; ``tests/`` must be importable: kind ``echo:EchoSimulator``."""

    @property
    def spec(self) -> SimulatorSpec:
        """As ``delay`` with other fields."""
        spec = super().spec
        fields = (
            FieldSpec(name="echo", shape=(4,), dtype="float32"),
            FieldSpec(name="image", shape=(32, 32, 3), dtype="uint8"),
        )
        return SimulatorSpec(
            observation=fields,
            action_dim=spec.action_dim,
            tasks=spec.tasks,
            instructions=spec.instructions,
            step_limits=spec.step_limits,
            fingerprint=spec.fingerprint,
        )

    def make(self) -> EchoEnv:
        """Build one environment."""
        return EchoEnv(self._settings)


class EchoTogether(EchoSimulator):
    """``EchoEnv`` in env batches that step as a whole: kind ``echo:EchoTogether``."""

    @property
    def spec(self) -> SimulatorSpec:
        """As ``EchoSimulator``'s."""
        return dataclasses.replace(super().spec, steps_together=True)


class RecordingSettings(EmulatedLearnerSettings):
    """Settings of ``RecordingLearner``."""

    file: str = Field(min_length=1)
    """Where each update appends a JSON line."""
    skip: tuple[int, ...] = ()
    """Attempts (from 1, over the life of the process) that are skipped as not finite."""


def verify(trajectory: Trajectory, slab: Slab) -> None:
    """Every observation, action, reward and stamp of a row belongs to this very trajectory."""
    row, chunks, start = trajectory.row, trajectory.chunks, trajectory.start
    done = np.concatenate([[0], np.cumsum(slab["sub_steps"][row, :chunks])])
    assert done[-1] == trajectory.sub_steps, f"sub-steps of {trajectory}"
    last = chunks + (trajectory.end != "terminated")
    before = slab["observation.echo"][row, 0, 3]
    wanted = np.zeros((last, 4), np.float32)
    wanted[:] = (start.task, SPLITS.index(start.split), start.state, before)
    wanted[:, 3] += done[:last]
    assert (before == 0) == (trajectory.first_chunk == 0), f"first observation of {trajectory}"
    assert np.array_equal(slab["observation.echo"][row, :last], wanted), f"observations of {trajectory}"
    actions = slab["record.action"][row, :chunks, :, :4]
    assert (actions == wanted[:chunks, None]).all(), f"actions of {trajectory}"
    executed = np.arange(slab["reward"].shape[2]) < slab["sub_steps"][row, :chunks, None]
    assert np.array_equal(slab["reward"][row, :chunks], executed.astype(np.float32)), (
        f"rewards of {trajectory}"
    )
    assert slab["episode"][row] == trajectory.episode
    versions = slab["version"][row, :chunks]
    assert versions.min() == trajectory.oldest_version, f"versions of {trajectory}: {versions}"
    assert (np.diff(versions) >= 0).all(), f"versions of {trajectory}: {versions}"


class RecordingLearner(EmulatedLearner):
    """Verifies what it is given; writes down what it trained.

    Further members of the Trainer have files of their own, which end in their rank.
    """

    def __init__(self, settings: RecordingSettings, *, streaming: bool, rank: int = 0) -> None:
        super().__init__(settings, streaming=streaming)
        self._file = Path(f"{settings.file}-{rank}" if rank else settings.file)
        self._skip = settings.skip
        self._attempt = self._calls = 0
        self._taken: list[dict[str, Any]] = []

    def ingest(self, trajectories: Sequence[Trajectory], slab: Slab) -> None:
        """Verify and remember."""
        self._calls += 1
        for trajectory in trajectories:
            verify(trajectory, slab)
            self._taken.append(
                {
                    "episode": trajectory.episode,
                    "group": trajectory.group,
                    "start": [trajectory.start.task, trajectory.start.state],
                    "split": trajectory.start.split,
                    "first_chunk": trajectory.first_chunk,
                    "lag": self.version - trajectory.oldest_version,
                    "row": trajectory.row,
                }
            )
        super().ingest(trajectories, slab)

    def update(self) -> UpdateReport:
        """Append a line for this update."""
        self._attempt += 1
        taken, self._taken = self._taken, []
        calls, self._calls = self._calls, 0
        if self._attempt in self._skip:
            return self.skip()
        report = super().update()
        line = json.dumps(
            {"version": self.version, "s": time.monotonic(), "micro_batches": calls, "trained": taken}
        )
        with self._file.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        return report

    def skip(self) -> UpdateReport:
        """Forget what was taken in."""
        self._taken = []
        self._samples = self._trajectories = 0
        return UpdateReport(skipped="an order of the test", rejected=True, metrics={})


class Recording:
    """Factory of ``RecordingLearner``: kind ``echo:Recording``."""

    Settings: ClassVar[type[Settings]] = RecordingSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> RecordingLearner:
        """Build it."""
        return RecordingLearner(settings, streaming=context.streaming, rank=context.rank)


class GroupedSettings(Settings):
    """Settings of ``Grouped``."""

    size: int = 2
    """G."""
    replacements: int = 0
    """Groups of a version that are replaced."""


class Grouped:
    """An algorithm that wants groups, for learners that learn nothing: kind ``echo:Grouped``."""

    Settings: ClassVar[type[Settings]] = GroupedSettings

    def __init__(self, settings: GroupedSettings) -> None:
        self.needs = Needs(groups=Groups(size=settings.size, replacements=settings.replacements))

    def estimates(self, rollouts: Any) -> Any:
        """Never asked."""
        raise AssertionError

    def loss(self, inputs: Any, *, value_only: bool) -> Any:
        """Never asked."""
        raise AssertionError


class Meeting(RecordingLearner):
    """Its members tell each other their ranks through their store; an update waits for all of them."""

    def __init__(self, settings: RecordingSettings, context: LearnerContext) -> None:
        super().__init__(settings, streaming=context.streaming, rank=context.rank)
        self._store, self._rank, self._ranks = Path(context.store), context.rank, context.ranks

    def update(self) -> UpdateReport:
        """Write, then wait for the others: commands that some members do not get would hang here."""
        line = f"{self.version} {self._rank}\n"
        with self._store.open("a") as file:
            file.write(line)
        wanted = {f"{self.version} {rank}" for rank in range(self._ranks)}
        while not wanted <= set(self._store.read_text().splitlines()):
            time.sleep(0.001)
        return super().update()


class MeetingFactory:
    """Factory of ``Meeting``: kind ``echo:MeetingFactory``."""

    Settings: ClassVar[type[Settings]] = RecordingSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> Meeting:
        """Build it."""
        return Meeting(settings, context)


class StuckLearner(EmulatedLearner):
    """Makes its file when an update begins, which then never ends."""

    def __init__(self, settings: RecordingSettings) -> None:
        super().__init__(settings, streaming=False)
        self._file = Path(settings.file)

    def update(self) -> UpdateReport:
        """Never return."""
        self._file.touch()
        threading.Event().wait()
        raise AssertionError


class Stuck:
    """Factory of ``StuckLearner``: kind ``echo:Stuck``."""

    Settings: ClassVar[type[Settings]] = RecordingSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> StuckLearner:
        """Build it."""
        return StuckLearner(settings)


def recorded(file: Path) -> list[Mapping[str, Any]]:
    """What was trained, version by version; after a resume the newer line of a version counts."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    newest = {line["version"]: line for line in lines}
    return [newest[version] for version in sorted(newest)]


class BrokenSimulator(EchoSimulator):
    """Its envs cannot be built: kind ``echo:BrokenSimulator``."""

    def make(self) -> EchoEnv:
        """Raise.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("no such device")


class ParentEnv(EchoEnv):
    """An env with a process of its own, as remote simulators have."""

    def __init__(self, settings: SyntheticSettings) -> None:
        super().__init__(settings)
        self._child = subprocess.Popen(["sleep", "1000"])


class ParentSimulator(EchoSimulator):
    """The adapter of ``ParentEnv``; its envs never end their processes themselves."""

    def make(self) -> ParentEnv:
        """Build one environment."""
        return ParentEnv(self._settings)


class RefusedSimulator(EchoSimulator):
    """Its envs cannot be built for a reason that the user can mend: kind ``echo:RefusedSimulator``."""

    def make(self) -> EchoEnv:
        """Raise.

        Raises:
            UserError: always.
        """
        raise UserError("simulator.options.device: there is no device 7; give another one")


class RefusedLearner:
    """It cannot be built for a reason that the user can mend: kind ``echo:RefusedLearner``."""

    Settings = RecordingSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> EmulatedLearner:
        """Raise.

        Raises:
            UserError: always.
        """
        raise UserError("learner.options.file: no such file; give another one")


def write_digest(file: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Append the version that the weights say they are, and what they really are."""
    array = weights["weights"]
    line = f"{array[0]:.0f} {hashlib.sha256(array.tobytes()).hexdigest()}\n"
    with file.open("a") as out:
        out.write(line)


def read_digests(file: Path) -> list[tuple[int, str]]:
    """(version, digest) of each line."""
    return [(int(line.split()[0]), line.split()[1]) for line in file.read_text().splitlines()]


class DigestLearner(EmulatedLearner):
    """Its weights are other numbers in every version; writes down what it publishes."""

    def __init__(self, settings: RecordingSettings, *, streaming: bool) -> None:
        super().__init__(settings, streaming=streaming)
        self._file = Path(settings.file)

    def weights(self, channel: Any) -> Mapping[str, np.ndarray]:
        """The version, then noise that depends on it."""
        array = np.random.default_rng(self.version).random(self.settings.weight_count, np.float32)
        array[0] = self.version
        write_digest(self._file, {"weights": array})
        return {"weights": array}


class Digests:
    """Factory of ``DigestLearner``: kind ``echo:Digests``."""

    Settings: ClassVar[type[Settings]] = RecordingSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> DigestLearner:
        """Build it."""
        return DigestLearner(settings, streaming=context.streaming)


class DigestPolicySettings(EmulatedSettings):
    """Settings of ``DigestPolicy``."""

    folder: str = Field(min_length=1)
    """Where each process writes down what it acts with."""


class DigestModel(EmulatedModel):
    """Writes down the weights that it has after each load."""

    def __init__(self, settings: DigestPolicySettings, interface: PolicyInterface) -> None:
        super().__init__(settings, interface)
        self._file = Path(settings.folder) / f"generator-{os.getpid()}"

    def load_arrays(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take them over."""
        super().load_arrays(weights)
        write_digest(self._file, self.arrays())


class DigestPolicy(Emulated):
    """Kind ``echo:DigestPolicy``."""

    Settings: ClassVar[type[Settings]] = DigestPolicySettings

    def build(self, device: str, seed: int) -> DigestModel:
        """The model."""
        assert isinstance(self.settings, DigestPolicySettings)
        return DigestModel(self.settings, self.interface)
