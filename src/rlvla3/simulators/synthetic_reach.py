"""The ``reach`` scene: coloured discs in a square, a pointer, and a colour to reach. numpy only."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 200, 60),
    "blue": (50, 90, 230),
    "yellow": (230, 210, 50),
}
"""RGB of each target."""
STEP_LENGTH = 0.05
"""Displacement of each axis for an action of 1; the square is [-1, 1]²."""
REACHED = 0.12
"""Distance at which a target counts as reached."""
OWN_STEP_LIMIT = 50
"""Sub-steps: ten chunks of five; the longest straight way needs 33."""
_BACKGROUND = (35, 35, 40)
_POINTER = (245, 245, 245)
_TARGET_RADIUS = 0.16
_POINTER_RADIUS = 0.10
_APART = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Fixed part of one episode."""

    targets: npt.NDArray[np.float64]
    """[number of colours, 2] in the order of ``COLOURS``."""
    pointer: npt.NDArray[np.float64]
    """[2]: where the pointer starts."""


def place(random: np.random.Generator) -> Scene:
    """Draw a scene: every two discs are at least 0.5 apart."""
    places: list[npt.NDArray[np.float64]] = []
    while len(places) < len(COLOURS) + 1:
        place_ = random.uniform(-0.8, 0.8, 2)
        if all(np.linalg.norm(place_ - other) >= _APART for other in places):
            places.append(place_)
        elif random.random() < 0.02:
            places.clear()  # the discs so far may leave no room
    return Scene(targets=np.array(places[:-1]), pointer=places[-1])


def draw(scene: Scene, pointer: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.uint8]:
    """The picture [size, size, 3]; edges are soft, so that it shows positions finer than a pixel."""
    centres = (np.arange(size) + 0.5) / size * 2 - 1
    picture = np.empty((size, size, 3), np.float32)
    picture[:] = _BACKGROUND
    discs = [
        (target, rgb, _TARGET_RADIUS) for target, rgb in zip(scene.targets, COLOURS.values(), strict=True)
    ]
    for (x, y), rgb, radius in (*discs, (pointer, _POINTER, _POINTER_RADIUS)):
        distance = np.hypot(centres[None, :] - x, centres[::-1, None] - y)
        cover = np.clip((radius - distance) * size / 2 + 0.5, 0, 1).astype(np.float32)[..., None]
        picture += cover * (np.array(rgb, np.float32) - picture)
    return picture.round().astype(np.uint8)
