"""What a policy expects, in the terms in which simulators say what they give."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from rlvla3.settings import Settings
from rlvla3.transforms.api import check_declared, choice_faults, finite_faults
from rlvla3.transforms.images import Range
from rlvla3.transforms.meaning import Part, places, total, twice_faults
from rlvla3.transforms.resizing import Filter, Place

BLANK = "blank"
"""In place of a camera's role: a black picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """How a policy wants its pictures: cropped first, then resized, then made numbers of."""

    height: int
    width: int
    range: Range = "symmetric"
    crop: float = 1.0
    """Share of each side that the middle keeps."""
    filter: Filter = "bilinear"
    antialias: bool = True
    keep_ratio: bool = True
    """True: padded to the shape; False: each side is stretched by itself."""
    place: Place = "centre"
    pad: int = 0
    """Byte of the padding."""

    def __post_init__(self) -> None:
        check_declared("picture", self._faults())

    def _faults(self) -> Iterator[str]:
        if min(self.height, self.width) < 1:
            yield f"height and width must be at least 1, they are {self.height} and {self.width}"
        if not 0 < self.crop <= 1:
            yield f"crop must be a share above 0 and up to 1, it is {self.crop:g}"
        if not 0 <= self.pad <= 255:
            yield f"pad must be a byte, it is {self.pad}"
        for what, choices in (("range", Range), ("filter", Filter), ("place", Place)):
            yield from choice_faults(what, getattr(self, what), choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a policy reads and says. None means: whatever the simulator has, as it is."""

    cameras: tuple[str, ...] | None = None
    """Roles of the cameras that it looks through, in its order."""
    picture: Picture | None = None
    """How it wants pictures; None: the simulator's bytes."""
    state: tuple[Part, ...] | None = None
    """Parts of the state that it reads, in its order; empty: it reads none."""
    state_width: int = 0
    """Numbers that the network reads; the state is padded to them with zeros; 0: as many as it has."""
    clip_state: float = 0.0
    """Normalised state is held within ±this; 0: it is not."""
    action: tuple[Part, ...] | None = None
    """Parts of the actions that it says, in its order and units."""
    action_width: int = 0
    """Numbers that the network says for an action, the first of which are real; 0: as many as there are."""
    horizon: int = 0
    """H: actions that it says at once; 0: as many as are executed."""
    relative: tuple[tuple[str, str], ...] = ()
    """(action part, state part): it says the action as a difference to that part of the state at the
    beginning of the chunk, in its own units."""

    def __post_init__(self) -> None:
        check_declared("expectation", (*self._own_faults(), *self._relative_faults()))

    def _own_faults(self) -> Iterator[str]:
        yield from twice_faults("cameras", self.cameras or ())
        for what in ("state_width", "clip_state", "action_width", "horizon"):
            if getattr(self, what) < 0:
                yield f"{what} must be 0 or more, it is {getattr(self, what):g}"
        yield from finite_faults("clip_state", self.clip_state)
        for what, parts, width in (
            ("state", self.state or (), self.state_width),
            ("action", self.action or (), self.action_width),
        ):
            yield from twice_faults(f"{what} parts", [part.name for part in parts])
            if 0 < width < total(parts):
                yield f"{what}_width must be 0 or at least {total(parts)}, its parts' numbers, it is {width}"

    def _relative_faults(self) -> Iterator[str]:
        yield from twice_faults("action parts of relative", [action for action, _ in self.relative])
        for action, state in self.relative:
            sizes = _size(action, self.action), _size(state, self.state)
            if 0 in sizes or (None not in sizes and sizes[0] != sizes[1]):
                yield (
                    f"relative must pair action and state parts of equal sizes that are there, it pairs "
                    f"{action!r} with {state!r}"
                )


def _size(name: str, parts: tuple[Part, ...] | None) -> int | None:
    """How many numbers a part has: 0 where it is not there; None where that is the simulator's to say."""
    if parts is None:
        return None
    return places(parts)[name][0].size if name in places(parts) else 0


class Concessions(Settings):
    """What a user accepts where a policy and a simulator do not fit. Without them a misfit is refused."""

    cameras: dict[str, str] = Field(default_factory=dict)
    """For a role that the simulator has not: ``blank``, or the role that is shown in its place."""
    zeros: tuple[str, ...] = ()
    """State parts that the simulator has not and that the policy reads as at rest (zeros)."""
    held: tuple[str, ...] = ()
    """Action parts that the policy does not say and that are held at rest."""
    dropped: tuple[str, ...] = ()
    """Action parts that the policy says and the simulator cannot do."""
    frames: tuple[str, ...] = ()
    """Parts that are passed on although the axes that they are along differ."""
