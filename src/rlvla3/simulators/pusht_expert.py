"""A scripted expert for gym-pusht's PushT: pushes the block to its goal, one place of contact at a time.

Nothing there has friction or momentum: the block moves only while it is pushed, and only along the
normal n of the edge that is touched. A push of s there moves its centre of mass by α·s·n and turns it by
α·s·(r × n)/ρ², where r leads from the centre to the contact, ρ is the radius of gyration and
α = 1/(1 + (r × n)²/ρ²). With angles measured as ρ·θ, each contact therefore moves the pose (x, y, ρ·θ)
along one fixed direction of the block's own frame, and the expert always takes the contact whose
direction lies best along what is missing to the goal, less a price for the way there.

All lengths are pixels of PushT's 512 × 512 field; "block frame" has its origin and axes on the block.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_AGENT = 15.0
"""Radius of the agent."""
_BOXES = np.array([[-60.0, 0.0, 60.0, 30.0], [-15.0, 30.0, 15.0, 120.0]])
"""The T in the block frame as two boxes (x0, y0, x1, y1): the bar, and the stem below it."""
_CENTRE = np.array([0.0, 45.0])
"""Centre of mass in the block frame."""
_RHO = math.sqrt(3000.0)
"""Radius of gyration: mass 1, moment 3000."""
_EDGES = (
    # from, to (block frame), inward normal, contacts
    ((-55, 0), (55, 0), (0, 1), 9),
    ((-60, 5), (-60, 25), (1, 0), 3),
    ((60, 5), (60, 25), (-1, 0), 3),
    ((-55, 30), (-31, 30), (0, -1), 3),
    ((31, 30), (55, 30), (0, -1), 3),
    ((-15, 46), (-15, 115), (1, 0), 6),
    ((15, 46), (15, 115), (-1, 0), 6),
    ((-10, 120), (10, 120), (0, -1), 3),
)
"""Where the agent can touch the outline; inner corners are too narrow for it."""
_CLEAR = _AGENT + 4
"""Distance that ways keep from the outline."""
_BEFORE = 8.0
"""Distance between agent and outline from which a push begins."""
_WALL = 8.0
"""Width of the border of the field, which the agent stays out of."""
_FIELD = 512.0
_PRICE = 0.001
"""What a pixel of the way to a contact costs, as a share of what is missing to the goal."""
_KEPT = 0.5
"""A contact is kept while it can still bring this share of what is missing to the goal."""
_LEAST = 0.5
"""Progress that is not worth a push any more."""
_LEAD = 40.0
"""Longest distance of the commanded from the present position while pushing: a sub-step goes 2/5 of it."""


def _contacts() -> tuple[Vector, Vector]:
    """Points [K, 2] on the outline and inward normals [K, 2], in the block frame."""
    points, normals = [], []
    for start, end, normal, count in _EDGES:
        points += list(np.linspace(start, end, count))
        normals += [normal] * count
    return np.array(points, np.float64), np.array(normals, np.float64)


def _blocked(start: Vector, ends: Vector, clearance: float) -> npt.NDArray[np.bool_]:
    """Whether straight ways from a point [2] to others [K, 2] enter a box that is grown by ``clearance``."""
    step = ends - start
    step = np.where(np.abs(step) < 1e-9, 1e-9, step)[:, None]
    low = (_BOXES[:, :2] - clearance - start) / step
    high = (_BOXES[:, 2:] + clearance - start) / step
    enters = np.minimum(low, high).max(2).clip(0, None)
    leaves = np.maximum(low, high).min(2).clip(None, 1)
    blocked: npt.NDArray[np.bool_] = (enters < leaves - 1e-9).any(1)
    return blocked


def _inside(point: Vector, clearance: float) -> bool:
    low, high = _BOXES[:, :2] - clearance, _BOXES[:, 2:] + clearance
    return bool(((low < point) & (point < high)).all(1).any())


def _corners() -> Vector:
    """Turning points [M, 2] of ways around the block."""
    grown = _BOXES + (_CLEAR + 2) * np.array([-1, -1, 1, 1])
    corners = [np.array([x, y]) for x0, y0, x1, y1 in grown for x in (x0, x1) for y in (y0, y1)]
    return np.array([corner for corner in corners if not _inside(corner, _CLEAR)])


def _lengths(starts: Vector, ends: Vector, clearance: float) -> Vector:
    """Lengths [M, K] of straight ways; infinite where the block is in the way."""
    length = np.linalg.norm(starts[:, None] - ends, axis=2)
    blocked = np.array([_blocked(start, ends, clearance) for start in starts])
    return np.where(blocked, np.inf, length)


def _ways() -> Vector:
    """Lengths [M, K] of the shortest ways from each turning point to each contact's beginning."""
    between = _lengths(_CORNERS, _CORNERS, _CLEAR)
    for middle in range(len(_CORNERS)):
        between = np.minimum(between, between[:, middle, None] + between[middle])
    last = _lengths(_CORNERS, _BEGINNINGS, _AGENT + 1)
    shortest: Vector = (between[:, :, None] + last).min(1)
    return shortest


_POINTS, _NORMALS = _contacts()
_ARMS = (_POINTS - _CENTRE) * _NORMALS[:, ::-1] @ np.array([1.0, -1.0])
_DIRECTIONS = np.column_stack([_NORMALS, _ARMS / _RHO])
_SIZES = np.linalg.norm(_DIRECTIONS, axis=1)
_UNITS = _DIRECTIONS / _SIZES[:, None]
_BEGINNINGS = _POINTS - (_AGENT + _BEFORE) * _NORMALS
_CORNERS = _corners()
_WAYS = _ways()


class PushTExpert:
    """Pushes the block of a PushT environment to its goal; sees its exact pose."""

    def __init__(self, env: Any) -> None:
        """``env``: gym-pusht's environment."""
        self._env = env
        self._contact = -1

    def reset(self) -> None:
        """An episode begins."""
        self._contact = -1

    def act(self, observation: Any) -> Vector:
        """Position [2] in the field that the agent is to go to."""
        block, agent = self._env.block, self._env.agent
        turn = _rotation(block.angle)
        position = np.array(block.position)
        missing = self._missing(turn, position)
        size = float(np.linalg.norm(missing)) + 1e-9
        own = (np.array(agent.position) - position) @ turn
        gains = _UNITS @ missing
        if not self._goes_on(own, gains, size):
            self._contact = self._best(own, gains / size, turn, position)
        target = self._push(own, gains[self._contact])
        if target is None:
            target = _next(own, self._contact)
        return np.clip(position + turn @ target, 0, _FIELD)

    def _missing(self, turn: Vector, position: Vector) -> Vector:
        """What is missing to the goal (x, y, ρ·θ) in the block frame."""
        x, y, angle = self._env.goal_pose
        goal = np.array([x, y]) + _rotation(angle) @ _CENTRE
        left = (angle - self._env.block.angle + math.pi) % (2 * math.pi) - math.pi
        return np.append((goal - position - turn @ _CENTRE) @ turn, _RHO * left)

    def _goes_on(self, own: Vector, gains: Vector, missing: float) -> bool:
        """Whether the agent is at its contact, and pushing there still helps."""
        contact = self._contact
        if contact < 0 or gains[contact] < max(_LEAST, _KEPT * missing):
            return False
        touching = _POINTS[contact] - _AGENT * _NORMALS[contact]
        return bool(np.linalg.norm(own - touching) < 14)

    def _best(self, own: Vector, shares: Vector, turn: Vector, position: Vector) -> int:
        """The contact worth most; ``shares`` [K]: what each can bring of what is missing."""
        lengths = _way_lengths(own)
        there = position + _BEGINNINGS @ turn.T
        outside = ((there < _WALL) | (there > _FIELD - _WALL)).any(1)
        worth = shares - _PRICE * np.minimum(lengths, 1e4) - 1e6 * outside
        return int(np.argmax(worth))

    def _push(self, own: Vector, gain: float) -> Vector | None:
        """Where to go in order to push, in the block frame; None while the agent is not at its contact."""
        normal, point = _NORMALS[self._contact], _POINTS[self._contact]
        along = np.array([-normal[1], normal[0]])
        gap = float((point - own) @ normal) - _AGENT
        aside = float((own - point) @ along)
        if abs(aside) > 6 or not -3 < gap < _BEFORE + 4:
            return None
        needed = gain * _SIZES[self._contact] + max(gap, 0.0)
        target: Vector = own + min(1.2 * needed + 4, _LEAD) * normal - aside * along
        return target


def _rotation(angle: float) -> Vector:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s], [s, c]])


def _next(own: Vector, contact: int) -> Vector:
    """Where to go first on the way from ``own`` to where the push begins, in the block frame."""
    goal: Vector = _BEGINNINGS[contact]
    if _inside(own, _CLEAR):
        near = np.linalg.norm(goal - own) < _BEFORE + 4 or not _blocked(own, goal[None], _AGENT - 2)[0]
        return goal if near else _exit(own)
    if not _blocked(own, goal[None], _AGENT + 1)[0]:
        return goal
    turning: Vector = _CORNERS[int((_to_corners(own) + _WAYS[:, contact]).argmin())]
    return turning


def _to_corners(own: Vector) -> Vector:
    """Lengths [M] of straight ways to the turning points."""
    lengths: Vector = _lengths(own[None], _CORNERS, _CLEAR - 1)[0]
    return lengths


def _way_lengths(own: Vector) -> Vector:
    """Lengths [K] of the ways to all contacts' beginnings, for one to be chosen."""
    near = 0.0
    if _inside(own, _CLEAR):
        outside = _exit(own)
        near, own = float(np.linalg.norm(outside - own)), outside
    straight = _lengths(own[None], _BEGINNINGS, _AGENT + 1)[0]
    around = (_to_corners(own)[:, None] + _WAYS).min(0)
    lengths: Vector = near + np.minimum(straight, around)
    return lengths


def _exit(own: Vector) -> Vector:
    """The nearest point that keeps its distance from the block."""
    found = []
    grown = _BOXES + (_CLEAR + 1) * np.array([-1, -1, 1, 1])
    for x0, y0, x1, y1 in grown:
        if x0 < own[0] < x1 and y0 < own[1] < y1:
            sides = ((x0, own[1]), (x1, own[1]), (own[0], y0), (own[0], y1))
            found += [np.array(side) for side in sides if not _inside(np.array(side), _CLEAR)]
    return min(found, key=lambda point: float(np.linalg.norm(point - own)), default=own)
