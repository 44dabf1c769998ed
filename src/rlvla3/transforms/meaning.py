"""What a simulator's fields mean, in the terms that policies use too.

A part is a run of numbers of a state or an action vector. Parts of both sides with the same name are
the same thing, in units and conventions that the parts state; numbers that nobody else knows have a name
of their own. Canonical units are metres, radians, seconds, and the share that a gripper is open.

Names in use: ``eef_position``, ``eef_rotation``, ``gripper``, ``joints``, ``joint_velocities``,
``base_position``, ``base_rotation`` of a state; ``delta_position``, ``delta_rotation``, ``gripper``,
``delta_joints``, ``base``, ``base_turn``, ``torso``, ``mode`` of an action. Cameras: ``front``, ``wrist``,
``left``, ``right``, ``top``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import msgspec

from rlvla3.messages import FieldSpec
from rlvla3.transforms.images import Orientation
from rlvla3.transforms.rotations import Form, size_of

Frame = Literal["", "base", "tool"]
"""Axes that directions are along: the robot's (or the world's), or the hand's; empty where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """A field that is a picture [height, width, 3] of bytes."""

    field: str
    """Observation field."""
    role: str
    """What it looks at; each role once."""
    height: int
    width: int
    orientation: Orientation = "upright"
    """How the field's frames come; adapters of this package give them upright."""


class Numbers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Plain numbers: positions, joints, velocities, modes."""

    name: str
    size: int
    scale: float = 1.0
    """Canonical units that 1 means: 0.05 where an action of 1 moves 5 cm."""
    frame: Frame = ""
    rest: float = 0.0
    """What each number is when nothing is asked of an action part that is held, or for a state part
    that is not there."""

    def words(self) -> str:
        """The part for people."""
        return f"{self.name} [{self.size}]"


class Rotation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A rotation, absolute or of one action."""

    name: str
    form: Form
    scale: float = 1.0
    """Radians that 1 means (of axis-angles and Euler angles); negative where axes point the other way."""
    frame: Frame = ""
    """Axes that an action turns about."""
    rest: float = 0.0

    @property
    def size(self) -> int:
        """How many numbers the form has."""
        return size_of(self.form)

    def words(self) -> str:
        """The part for people."""
        return f"{self.name} [{self.size}] {self.form}"


class Gripper(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How open a gripper is, or shall be."""

    open: tuple[float, ...]
    """Numbers of an open gripper: one, or one for each finger."""
    closed: tuple[float, ...]
    """Numbers of a closed gripper."""
    threshold: float | None = None
    """Share from which an action counts as open, if nothing between open and closed is executed."""
    name: str = "gripper"
    frame: Frame = ""
    rest: float = 0.0

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return len(self.open)

    def words(self) -> str:
        """The part for people."""
        ends = (", ".join(f"{number:g}" for number in numbers) for numbers in (self.open, self.closed))
        return "{} [{}] open {}, closed {}".format(self.name, self.size, *ends)


class Switch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something between two ends that is no gripper: the mode of a mobile robot."""

    name: str
    on: float
    off: float
    threshold: float | None = None
    """Share of the way from off to on at which an action counts as on; None: what is between is passed on."""
    frame: Frame = ""
    rest: float = 0.0

    @property
    def size(self) -> int:
        """One number."""
        return 1

    def words(self) -> str:
        """The part for people."""
        return f"{self.name} [1] on {self.on:g}, off {self.off:g}"


Part = Numbers | Rotation | Gripper | Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a simulator's observation fields and action are."""

    cameras: tuple[Camera, ...]
    state: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    """For each float field what its numbers are, in their order. Fields that are not named are no
    part of the state."""
    action: tuple[Part, ...]
    """What the action's numbers are, in their order."""

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """All parts of the state, field after field."""
        return tuple(part for parts in self.state.values() for part in parts)

    def faults(self, observation: Sequence[FieldSpec], action_dim: int) -> list[str]:
        """Where it differs from the fields and the action that it is about; empty if nowhere."""
        parts = (*self.state_parts, *self.action)
        if found := [fault for part in parts for fault in part_faults(part)]:
            return found
        shapes = {spec.name: spec.shape for spec in observation}
        wanted: dict[str, tuple[int, ...]] = {c.field: (c.height, c.width, 3) for c in self.cameras}
        wanted |= {name: (total(parts),) for name, parts in self.state.items()}
        found = [
            f"field {name!r} is {list(shapes.get(name, ()))}, its meaning {list(shape)}"
            for name, shape in wanted.items()
            if shapes.get(name) != shape
        ]
        if total(self.action) != action_dim:
            found.append(f"the action has {action_dim} numbers, its meaning {total(self.action)}")
        groups = {
            "cameras": [camera.role for camera in self.cameras],
            "state parts": [part.name for part in self.state_parts],
            "action parts": [part.name for part in self.action],
        }
        for what, names in groups.items():
            if len(set(names)) < len(names):
                found.append(f"{what} must differ, they are {', '.join(names)}")
        found += [
            f"camera {camera.role!r}: {fault}"
            for camera in self.cameras
            for fault in choice_faults("orientation", camera.orientation, Orientation)
        ]
        return found


def part_faults(part: Part) -> list[str]:
    """What is wrong with one part by itself."""
    return [f"part {part.name!r}: {fault}" for fault in _faults(part)]


def _faults(part: Part) -> Iterator[str]:
    if not part.name:
        yield "must have a name"
    yield from choice_faults("frame", part.frame, Frame)
    if isinstance(part, Numbers) and part.size < 1:
        yield f"size must be at least 1, it is {part.size}"
    if isinstance(part, Rotation):
        yield from choice_faults("form", part.form, Form)
    if isinstance(part, Numbers | Rotation):
        if part.scale == 0 or not math.isfinite(part.scale):
            yield f"scale must be a finite number other than 0, it is {part.scale:g}"
    elif part.threshold is not None and not 0 <= part.threshold <= 1:
        yield f"threshold must be a share from 0 to 1, it is {part.threshold:g}"
    if isinstance(part, Gripper):
        ends = list(zip(part.open, part.closed, strict=False))
        if not ends or len(part.open) != len(part.closed) or any(a == b for a, b in ends):
            yield f"open {part.open} and closed {part.closed} must be equally many numbers that differ"
    if isinstance(part, Switch) and part.on == part.off:
        yield f"on and off must differ, they are {part.on:g}"


def choice_faults(what: str, value: object, choices: Any) -> Iterator[str]:
    """A line if a value is none of a Literal's."""
    known = get_args(choices)
    if value not in known:
        yield f"{what} must be {', '.join(map(repr, known))}, it is {value!r}"


def total(parts: Sequence[Part]) -> int:
    """Numbers of all parts together."""
    return sum(part.size for part in parts)


_P = TypeVar("_P", bound=Part)


def places(parts: Sequence[_P]) -> dict[str, tuple[_P, slice]]:
    """Each part by its name, and where its numbers are."""
    found: dict[str, tuple[_P, slice]] = {}
    start = 0
    for part in parts:
        found[part.name] = (part, slice(start, start + part.size))
        start += part.size
    return found


def listed(parts: Sequence[Part]) -> str:
    """Parts for people."""
    return ", ".join(part.name for part in parts) or "none"
