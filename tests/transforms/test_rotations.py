"""Rotations against torch's exponential, against each other, and by hand; near 0, π and gimbal lock."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla3.transforms import rotations
from rlvla3.transforms.rotations import FORMS, Rotate, convert

steady = settings(max_examples=60, deadline=None)
unit = st.floats(-1, 1)
angles = st.one_of(
    st.floats(0, 2 * math.pi - 1e-3),
    st.sampled_from([0.0, 1e-300, 1e-160, 1e-9, 1e-4, math.pi - 1e-9, math.pi, math.pi + 1e-9]),
)


@st.composite
def turns(draw, longest=math.inf):
    axis = np.array([draw(unit), draw(unit), draw(unit)])
    if np.linalg.norm(axis) < 1e-3:
        axis = np.array([0.0, 0.0, 1.0])
    return axis / np.linalg.norm(axis) * min(draw(angles), longest)


def matrix(turn):
    """The rotation as the exponential of its generator: an oracle that knows no quaternions."""
    x, y, z = turn
    generator = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    return torch.linalg.matrix_exp(generator).numpy()


@steady
@given(turns())
def test_axis_angles_agree_with_the_matrix_exponential(turn):
    found = convert(turn, "axis_angle", "matrix").reshape(3, 3)
    np.testing.assert_allclose(found, matrix(turn), atol=1e-12)


@steady
@given(turns())
def test_axis_angles_come_back_from_quaternions_up_to_a_whole_turn(turn):
    for form in ("quaternion_wxyz", "quaternion_xyzw"):
        found = convert(convert(turn, "axis_angle", form), form, "axis_angle")
        np.testing.assert_allclose(found, turn, atol=1e-9)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FORMS), st.sampled_from(FORMS), turns())
def test_every_form_says_the_same_rotation_as_every_other(source, target, turn):
    start = convert(turn, "axis_angle", source)
    there = convert(start, source, target)
    assert there.shape == (rotations.size_of(target),)
    again = convert(there, target, source)
    for form, values in ((source, start), (target, there), (source, again)):
        np.testing.assert_allclose(convert(values, form, "matrix").reshape(3, 3), matrix(turn), atol=2e-9)


@pytest.mark.parametrize("form", ["euler_xyz_intrinsic", "euler_xyz_extrinsic"])
@steady
@given(st.floats(-3.1, 3.1), st.floats(-1.5, 1.5), st.floats(-3.1, 3.1))
def test_euler_angles_come_back_away_from_gimbal_lock(form, first, middle, third):
    given_ = np.array([first, middle, third])
    found = convert(convert(given_, form, "quaternion_wxyz"), "quaternion_wxyz", form)
    np.testing.assert_allclose(found, given_, atol=1e-7)


@pytest.mark.parametrize("form", ["euler_xyz_intrinsic", "euler_xyz_extrinsic"])
@pytest.mark.parametrize("middle", [math.pi / 2, -math.pi / 2])
def test_at_gimbal_lock_the_rotation_is_kept_and_the_first_angle_is_0(form, middle):
    given_ = np.array([0.3, middle, 0.4])
    quaternion = convert(given_, form, "quaternion_wxyz")
    found = convert(quaternion, "quaternion_wxyz", form)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(convert(found, form, "matrix"), convert(given_, form, "matrix"), atol=1e-7)
    near = np.array([2.22144147, 5.99336420e-09, 2.22144147])  # half a turn about (1, 0, 1)
    found = convert(convert(near, "axis_angle", form), form, "matrix").reshape(3, 3)
    np.testing.assert_allclose(found, matrix(near), atol=1e-9)
    locked = rotations.matrix_to_euler(np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]))
    np.testing.assert_allclose(locked, [0, math.pi / 2, 0])


@pytest.mark.parametrize(
    ("form", "numbers"),
    [
        # A quarter turn about z, in every form by hand.
        ("axis_angle", [0, 0, math.pi / 2]),
        ("quaternion_wxyz", [math.sqrt(0.5), 0, 0, math.sqrt(0.5)]),
        ("quaternion_xyzw", [0, 0, math.sqrt(0.5), math.sqrt(0.5)]),
        ("matrix", [0, -1, 0, 1, 0, 0, 0, 0, 1]),
        ("rows_6d", [0, -1, 0, 1, 0, 0]),
        ("columns_6d", [0, 1, 0, -1, 0, 0]),
        ("euler_xyz_intrinsic", [0, 0, math.pi / 2]),
        ("euler_xyz_extrinsic", [0, 0, math.pi / 2]),
    ],
)
def test_a_quarter_turn_about_z(form, numbers):
    found = convert(np.array([0, 0, math.pi / 2]), "axis_angle", form)
    np.testing.assert_allclose(found, numbers, atol=1e-15)


def test_the_order_of_euler_angles():
    """x by 90°, then y by 90°: about moving axes Rx·Ry, about fixed ones Ry·Rx."""
    quarter = np.array([math.pi / 2, math.pi / 2 - 1e-6, 0])
    x, y = matrix([math.pi / 2, 0, 0]), matrix([0, math.pi / 2 - 1e-6, 0])
    moving = convert(quarter, "euler_xyz_intrinsic", "matrix").reshape(3, 3)
    fixed = convert(quarter, "euler_xyz_extrinsic", "matrix").reshape(3, 3)
    np.testing.assert_allclose(moving, x @ y, atol=1e-12)
    np.testing.assert_allclose(fixed, y @ x, atol=1e-12)


def test_the_sign_of_a_quaternion_is_the_length_of_its_axis_angle():
    """As in published statistics of LIBERO, whose gripper points down: angles pass π and do not jump."""
    for angle in (3.0, 3.3):
        quaternion = np.array([math.sin(angle / 2), 0, 0, math.cos(angle / 2)])
        found = convert(quaternion, "quaternion_xyzw", "axis_angle")
        np.testing.assert_allclose(found, [angle, 0, 0], atol=1e-12)


def test_six_numbers_of_a_network_need_not_be_orthonormal():
    found = convert(np.array([2.0, 0, 0, 5, 0.1, 0]), "rows_6d", "matrix")
    np.testing.assert_allclose(found.reshape(3, 3), np.eye(3), atol=1e-12)


def test_precision_and_shapes_stay():
    values = np.zeros((2, 5, 3), np.float32)
    found = convert(values, "axis_angle", "quaternion_wxyz")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.broadcast_to(np.float32([1, 0, 0, 0]), (2, 5, 4)))
    with pytest.raises(ValueError, match=r"a rotation as matrix must be \[..., 9\], is \[2, 5, 3\]"):
        convert(values, "matrix", "axis_angle")
    with pytest.raises(ValueError, match="a rotation as axis_angle"):
        Rotate(source="axis_angle", target="axis_angle").apply(np.zeros(4))


@steady
@given(turns(longest=3.0), st.sampled_from([0.5, -0.1, 1.0]), st.sampled_from([0.5, -0.1]))
def test_units_round_trip(turn, source_scale, target_scale):
    step = Rotate(
        source="axis_angle",
        target="euler_xyz_intrinsic",
        source_scale=source_scale,
        target_scale=target_scale,
    )
    said = turn * 0.4 / source_scale  # 1.2 rad at most: no gimbal lock
    np.testing.assert_allclose(step.invert(step.apply(said)), said, atol=1e-6)
    same = Rotate(
        source="axis_angle", target="axis_angle", source_scale=source_scale, target_scale=target_scale
    )
    huge = turn * 1e3  # beyond a whole turn: of equal forms only the unit changes
    np.testing.assert_allclose(same.apply(huge), huge * source_scale / target_scale, rtol=1e-12)
    np.testing.assert_allclose(same.invert(same.apply(huge)), huge, rtol=1e-12)
