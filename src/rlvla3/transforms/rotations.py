"""Rotations in the forms that simulators and policies use, safe near 0 and π.

Everything goes through unit quaternions (w, x, y, z), in float64. Their sign is kept wherever the
form has one: an axis-angle is up to 2π long, where a quaternion had w < 0. Folding it to π would make a
gripper that points down jump between +π and −π, and differ from statistics of published checkpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlvla3.transforms.api import Array, check_declared, check_last, choice_faults, factor_faults

Form = Literal[
    "axis_angle",
    "quaternion_wxyz",
    "quaternion_xyzw",
    "matrix",
    "rows_6d",
    "columns_6d",
    "euler_xyz_intrinsic",
    "euler_xyz_extrinsic",
]
Floats = npt.NDArray[np.float64]

_LOCKED = 1e-9
"""Cosine of the middle Euler angle below which the first and the third turn about one axis."""


def axis_angle_to_quaternion(turn: Floats) -> Floats:
    """Axis times angle [..., 3] in radians → (w, x, y, z) [..., 4]."""
    half = np.linalg.norm(turn, axis=-1, keepdims=True) / 2
    return np.concatenate([np.cos(half), turn / 2 * np.sinc(half / np.pi)], -1)


def quaternion_to_axis_angle(quaternion: Floats) -> Floats:
    """(w, x, y, z) [..., 4] → axis times angle [..., 3], of length 0…2π by the sign of w."""
    w, vector = quaternion[..., :1], quaternion[..., 1:]
    length = np.linalg.norm(vector, axis=-1, keepdims=True)
    angle = 2 * np.arctan2(length, w)
    turn: Floats = vector * (angle / np.where(length > 0, length, 1.0))
    return turn


def quaternion_to_matrix(quaternion: Floats) -> Floats:
    """(w, x, y, z) [..., 4] → [..., 3, 3]."""
    w, x, y, z = np.moveaxis(quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def matrix_to_quaternion(matrix: Floats) -> Floats:
    """[..., 3, 3] → (w, x, y, z) [..., 4] with w ≥ 0.

    4·q·qᵀ is read off the matrix and its row with the largest diagonal is taken: no root of a small number.
    """
    m = matrix
    xx, yy, zz = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    wx, wy, wz = m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]
    xy, xz, yz = m[..., 1, 0] + m[..., 0, 1], m[..., 0, 2] + m[..., 2, 0], m[..., 2, 1] + m[..., 1, 2]
    products = [
        [1 + xx + yy + zz, wx, wy, wz],
        [wx, 1 + xx - yy - zz, xy, xz],
        [wy, xy, 1 - xx + yy - zz, yz],
        [wz, xz, yz, 1 - xx - yy + zz],
    ]
    table = np.stack([np.stack(row, -1) for row in products], -2)
    largest = np.argmax(np.diagonal(table, axis1=-2, axis2=-1), -1)
    row = np.take_along_axis(table, largest[..., None, None], -2)[..., 0, :]
    unit: Floats = row / np.linalg.norm(row, axis=-1, keepdims=True)
    return np.where(unit[..., :1] < 0, -unit, unit)


def rows_to_matrix(rows: Floats) -> Floats:
    """Two rows [..., 6], made orthonormal by Gram and Schmidt → [..., 3, 3]."""
    first = rows[..., :3] / np.linalg.norm(rows[..., :3], axis=-1, keepdims=True)
    second = rows[..., 3:] - first * (first * rows[..., 3:]).sum(-1, keepdims=True)
    second = second / np.linalg.norm(second, axis=-1, keepdims=True)
    return np.stack([first, second, np.cross(first, second)], -2)


def euler_to_matrix(angles: Floats) -> Floats:
    """Intrinsic X, Y', Z'' angles [..., 3] → Rx·Ry·Rz [..., 3, 3]."""
    a, b, c = np.moveaxis(angles, -1, 0)
    sa, ca, sb, cb, sc, cc = np.sin(a), np.cos(a), np.sin(b), np.cos(b), np.sin(c), np.cos(c)
    rows = [
        [cb * cc, -cb * sc, sb],
        [ca * sc + sa * sb * cc, ca * cc - sa * sb * sc, -sa * cb],
        [sa * sc - ca * sb * cc, sa * cc + ca * sb * sc, ca * cb],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def matrix_to_euler(matrix: Floats) -> Floats:
    """[..., 3, 3] → intrinsic X, Y', Z'' angles [..., 3], the middle one within ±π/2.

    At ±π/2 the first and the third turn about one axis: the first is 0 then. The rotation is the
    same; which two angles made it is lost.
    """
    m = matrix
    locked = np.hypot(m[..., 1, 2], m[..., 2, 2]) < _LOCKED
    first = np.where(locked, 0.0, np.arctan2(-m[..., 1, 2], m[..., 2, 2]))
    # Read off what is left when the first is undone: near a lock the others make up for its error.
    sine, cosine = np.sin(first), np.cos(first)
    middle = np.arctan2(m[..., 0, 2], cosine * m[..., 2, 2] - sine * m[..., 1, 2])
    third = np.arctan2(
        cosine * m[..., 1, 0] + sine * m[..., 2, 0], cosine * m[..., 1, 1] + sine * m[..., 2, 1]
    )
    return np.stack([first, middle, third], -1)


def _transposed(matrix: Floats) -> Floats:
    return np.swapaxes(matrix, -1, -2)


def _flat(matrix: Floats) -> Floats:
    return matrix.reshape(*matrix.shape[:-2], -1)


def _xyzw_to_wxyz(quaternion: Floats) -> Floats:
    return quaternion[..., [3, 0, 1, 2]]


def _wxyz_to_xyzw(quaternion: Floats) -> Floats:
    return quaternion[..., [1, 2, 3, 0]]


@dataclass(frozen=True, slots=True)
class _Form:
    size: int
    to_quaternion: Callable[[Floats], Floats]
    from_quaternion: Callable[[Floats], Floats]


def _by_matrix(size: int, to: Callable[[Floats], Floats], back: Callable[[Floats], Floats]) -> _Form:
    return _Form(size, lambda v: matrix_to_quaternion(to(v)), lambda q: back(quaternion_to_matrix(q)))


_FORMS: dict[Form, _Form] = {
    "axis_angle": _Form(3, axis_angle_to_quaternion, quaternion_to_axis_angle),
    "quaternion_wxyz": _Form(4, lambda q: q, lambda q: q),
    "quaternion_xyzw": _Form(4, _xyzw_to_wxyz, _wxyz_to_xyzw),
    "matrix": _by_matrix(9, lambda v: v.reshape(*v.shape[:-1], 3, 3), _flat),
    "rows_6d": _by_matrix(6, rows_to_matrix, lambda m: _flat(m[..., :2, :])),
    "columns_6d": _by_matrix(
        6, lambda v: _transposed(rows_to_matrix(v)), lambda m: _flat(_transposed(m)[..., :2, :])
    ),
    "euler_xyz_intrinsic": _by_matrix(3, euler_to_matrix, matrix_to_euler),
    # Turns about fixed axes are the inverse of those about moving axes, in the other order.
    "euler_xyz_extrinsic": _by_matrix(
        3, lambda v: _transposed(euler_to_matrix(-v)), lambda m: -matrix_to_euler(_transposed(m))
    ),
}
FORMS: tuple[Form, ...] = tuple(_FORMS)


def size_of(form: Form) -> int:
    """How many numbers a form has."""
    return _FORMS[form].size


def convert(values: Array, source: Form, target: Form) -> Array:
    """The same rotations [..., n] in another form [..., m], with the precision of ``values``."""
    check_last(values, size_of(source), f"a rotation as {source}")
    if source == target:
        return values
    quaternion = _FORMS[source].to_quaternion(values.astype(np.float64))
    return _FORMS[target].from_quaternion(quaternion).astype(values.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotate:
    """Rotations of one form and unit into another.

    Of equal forms only the unit changes, exactly and for numbers of any size. Between forms a turn beyond
    the target's range is lost: beyond 2π for an axis-angle, beyond ±π/2 for the middle Euler angle, the
    sign of a quaternion for matrices and Euler angles (the rotation itself is always kept).
    """

    source: Form
    target: Form
    source_scale: float = 1.0
    """Radians that 1 means; negative where the axis points the other way."""
    target_scale: float = 1.0
    """The same of the target."""

    def __post_init__(self) -> None:
        for what, form, scale in (
            ("source", self.source, self.source_scale),
            ("target", self.target, self.target_scale),
        ):
            faults = (*choice_faults("form", form, Form), *factor_faults("scale", scale))
            check_declared(f"{what} of a rotation", faults)

    def apply(self, values: Array) -> Array:
        """[..., n of source] → [..., n of target]."""
        return _rescaled(values, self.source, self.target, self.source_scale, self.target_scale)

    def invert(self, values: Array) -> Array:
        """[..., n of target] → [..., n of source]."""
        return _rescaled(values, self.target, self.source, self.target_scale, self.source_scale)


def _rescaled(values: Array, source: Form, target: Form, unit: float, wanted: float) -> Array:
    if source == target:
        check_last(values, size_of(source), f"a rotation as {source}")
        return np.multiply(values, unit / wanted, dtype=values.dtype)
    exact = convert(values.astype(np.float64) * unit, source, target) / wanted
    return exact.astype(values.dtype)
