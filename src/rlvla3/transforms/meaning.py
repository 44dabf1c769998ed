"""What a simulator's fields mean, in the terms that policies use too.

A part is a run of numbers of a state or an action vector. Parts of both sides with the same name are
the same thing, in units and conventions that the parts state; numbers that nobody else knows have a name
of their own. Canonical units are metres, radians, seconds, and the share that a gripper is open.

Names in use: ``eef_position``, ``eef_rotation``, ``gripper``, ``joints``, ``joint_velocities``,
``base_position``, ``base_rotation`` of a state; ``delta_position``, ``delta_rotation``, ``gripper``,
``delta_joints``, ``base``, ``base_turn``, ``torso``, ``mode`` of an action. Cameras: ``front``, ``wrist``,
``left``, ``right``, ``top``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from rlvla3.messages import FieldSpec
from rlvla3.transforms.api import (
    check_declared,
    choice_faults,
    ends_faults,
    factor_faults,
    finite_faults,
)
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

    def __post_init__(self) -> None:
        check_declared(f"camera {self.role!r}", _camera_faults(self))


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

    def __post_init__(self) -> None:
        check_declared(f"part {self.name!r}", _part_faults(self))

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

    def __post_init__(self) -> None:
        check_declared(f"part {self.name!r}", _part_faults(self))

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

    def __post_init__(self) -> None:
        check_declared(f"part {self.name!r}", _part_faults(self))

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

    def __post_init__(self) -> None:
        check_declared(f"part {self.name!r}", _part_faults(self))

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

    def __post_init__(self) -> None:
        check_declared("meaning", _meaning_faults(self))

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """All parts of the state, field after field."""
        return tuple(part for parts in self.state.values() for part in parts)

    def faults(self, observation: Sequence[FieldSpec], action_dim: int) -> list[str]:
        """Where it differs from the fields and the action that it is about; empty if nowhere."""
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
        return found


def _camera_faults(camera: Camera) -> Iterator[str]:
    if not (camera.field and camera.role):
        yield f"must have a field and a role, they are {camera.field!r} and {camera.role!r}"
    if min(camera.height, camera.width) < 1:
        yield f"height and width must be at least 1, they are {camera.height} and {camera.width}"
    yield from choice_faults("orientation", camera.orientation, Orientation)


def _part_faults(part: Part) -> Iterator[str]:
    if not part.name:
        yield "must have a name"
    yield from choice_faults("frame", part.frame, Frame)
    yield from finite_faults("rest", part.rest)
    if isinstance(part, Numbers) and part.size < 1:
        yield f"size must be at least 1, it is {part.size}"
    if isinstance(part, Rotation):
        yield from choice_faults("form", part.form, Form)
    if isinstance(part, Numbers | Rotation):
        yield from factor_faults("scale", part.scale)
    elif part.threshold is not None and not 0 <= part.threshold <= 1:
        yield f"threshold must be a share from 0 to 1, it is {part.threshold:g}"
    if isinstance(part, Gripper):
        yield from ends_faults("open", part.open, "closed", part.closed)
        yield from finite_faults("each number of open and closed", *part.open, *part.closed)
    if isinstance(part, Switch):
        yield from finite_faults("each of on and off", part.on, part.off)
        if part.on == part.off:
            yield f"on and off must differ, they are {part.on:g}"


def _meaning_faults(meaning: Meaning) -> Iterator[str]:
    fields = [*(camera.field for camera in meaning.cameras), *meaning.state]
    yield from twice_faults("fields", fields)
    yield from twice_faults("cameras", [camera.role for camera in meaning.cameras])
    yield from twice_faults("state parts", [part.name for part in meaning.state_parts])
    yield from twice_faults("action parts", [part.name for part in meaning.action])


def twice_faults(what: str, names: Sequence[str]) -> Iterator[str]:
    """A line if a name is there twice."""
    if len(set(names)) < len(names):
        yield f"{what} must differ, they are {', '.join(names)}"


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
