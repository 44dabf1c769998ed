"""N simulators and M policies: each pair works, or is refused with a line that says what can be done."""

import re

import numpy as np
import pytest

from rlvla3.errors import UserError
from rlvla3.transforms.composing import compose
from rlvla3.transforms.expecting import Concessions, Expectation, Picture
from rlvla3.transforms.meaning import Camera, Meaning, Numbers, Rotation, total
from rlvla3.transforms.statistics import Statistics
from transforms.embodiments import LIBERO, MANISKILL, PAIRS, POLICIES, ROBOCASA, SIMULATORS, concessions

BATCH, CHUNK = 3, 5


def statistics(size, seed, mode="mean_std"):
    random = np.random.default_rng(seed)
    first = random.uniform(-0.2, 0.2, size)
    second = random.uniform(0.5, 0.9, size) + (0 if mode == "mean_std" else 0.4)
    return Statistics(mode=mode, first=tuple(first), second=tuple(second))


def observation(meaning, seed=0):
    """A plausible batch: unit quaternions, small rotations, pictures of noise."""
    random = np.random.default_rng(seed)
    fields = {
        camera.field: random.integers(0, 256, (BATCH, camera.height, camera.width, 3), np.uint8)
        for camera in meaning.cameras
    }
    for name, parts in meaning.state.items():
        runs = [random.uniform(-1, 1, (BATCH, part.size)) for part in parts]
        runs = [
            run / np.linalg.norm(run, axis=-1, keepdims=True)
            if getattr(part, "form", "").startswith("quat")
            else run
            for part, run in zip(parts, runs, strict=True)
        ]
        fields[name] = np.concatenate(runs, -1).astype(np.float32)
    return fields


def joined(policy, simulator, accepted=None):
    meaning, expected = SIMULATORS[simulator], POLICIES[policy]
    state = meaning.state_parts if expected.state is None else expected.state
    action = meaning.action if expected.action is None else expected.action
    mode = {"groot": "min_max", "oft": "quantile"}.get(policy, "mean_std")
    return compose(
        meaning,
        expected,
        CHUNK,
        state_statistics=None if policy == "tiny" else statistics(total(state), 1, mode),
        action_statistics=None if policy == "tiny" else statistics(total(action), 2, mode),
        concessions=accepted,
    )


def test_every_pair_is_in_the_table():
    assert set(PAIRS) == {(policy, simulator) for policy in POLICIES for simulator in SIMULATORS}


@pytest.mark.parametrize("pair", [pair for pair, (said, _) in PAIRS.items() if said], ids="-".join)
def test_a_misfit_is_refused_in_one_line_that_names_part_and_remedy(pair):
    with pytest.raises(UserError, match=re.escape(PAIRS[pair][0])) as refused:
        joined(*pair)
    line = str(refused.value)
    assert "\n" not in line and "concessions." in line and "(it has" in line


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_actions_go_to_the_simulator_and_back(pair):
    policy, simulator = pair
    meaning = SIMULATORS[simulator]
    inputs, outputs = joined(policy, simulator, concessions(pair))
    raw = inputs.raw_state(observation(meaning)).astype(np.float64)
    said = np.random.default_rng(3).uniform(-1, 1, (BATCH, *outputs.mask.shape))
    if policy == "oft":  # its gripper is binary: only the ends come back
        ends = np.array(outputs.normalise.apply(np.eye(7)[6:] * [[0.0], [1.0]]))[:, 6]
        said[..., 6] = np.where(said[..., 6] > 0, ends[1], ends[0])
    actions = outputs.apply(said, raw)
    assert actions.shape == (BATCH, CHUNK, total(meaning.action))
    np.testing.assert_allclose(
        outputs.invert(actions, raw)[:, outputs.mask], said[:, outputs.mask], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_float32_actions_come_back_as_well_as_they_can(pair):
    inputs, outputs = joined(*pair, concessions(pair))
    raw = inputs.raw_state(observation(SIMULATORS[pair[1]]))
    said = np.random.default_rng(3).uniform(-1, 1, (BATCH, *outputs.mask.shape)).astype(np.float32)
    once = outputs.apply(said, raw)
    again = outputs.apply(outputs.invert(once, raw), raw)
    assert once.dtype == again.dtype == np.float32
    np.testing.assert_allclose(again, once, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_observations_become_what_the_policy_expects(pair):
    policy, simulator = pair
    meaning, expected = SIMULATORS[simulator], POLICIES[policy]
    inputs, _ = joined(policy, simulator, concessions(pair))
    found = inputs.apply(observation(meaning))
    roles = expected.cameras or tuple(camera.role for camera in meaning.cameras)
    assert tuple(found.images) == roles
    for role, image in found.images.items():
        if expected.picture:
            assert image.shape == (BATCH, expected.picture.height, expected.picture.width, 3)
            assert image.dtype == (np.uint8 if expected.picture.range == "bytes" else np.float32)
        shown = PAIRS[pair][1].get("cameras", {}).get(role, role)
        assert found.shown[role] == (shown != "blank")
        assert (image == image.min()).all() == (shown == "blank")
    parts = meaning.state_parts if expected.state is None else expected.state
    assert found.raw_state.shape == (BATCH, total(parts))
    assert found.state.shape == (BATCH, expected.state_width or total(parts))
    assert found.state.dtype == np.float32 and np.isfinite(found.state).all()
    assert not found.state[:, total(parts) :].any()
    if not expected.clip_state:
        np.testing.assert_allclose(inputs.prepare.invert(found.state), found.raw_state, atol=1e-6)


def test_a_policy_that_takes_anything_gets_everything_as_it_is():
    inputs, outputs = compose(LIBERO, Expectation(), CHUNK)
    given = observation(LIBERO)
    found = inputs.apply(given)
    np.testing.assert_array_equal(found.images["front"], given["image"])
    np.testing.assert_array_equal(found.state, given["proprioception"])
    said = np.random.default_rng(0).normal(size=(2, CHUNK, 7)).astype(np.float32)
    np.testing.assert_array_equal(outputs.apply(said), said)
    assert outputs.mask.all()


def test_numbers_by_hand_from_libero_to_maniskill():
    """5 cm along x are half of ManiSkill's 10; a turn of 0.05 rad about z is −½; open is +1."""
    policy = Expectation(action=LIBERO.action)
    _, outputs = compose(MANISKILL, policy, 1)
    said = np.array([[[1.0, 0, 0, 0, 0, 0.1, -1.0]]])
    np.testing.assert_allclose(outputs.apply(said), [[[0.5, 0, 0, 0, 0, -0.5, 1.0]]], atol=1e-12)


def test_states_by_hand_from_maniskill_to_a_panda_of_libero():
    """A gripper that points down: half a turn about x; ManiSkill's second finger counts upwards."""
    inputs, _ = compose(MANISKILL, POLICIES["pi0"], 5, concessions=Concessions(cameras={"wrist": "front"}))
    hand = [0.1, 0.2, 0.3, 0, 1, 0, 0]
    state = np.array([9] * 7 + [0.03, 0.02] + [9] * 9 + [1] + hand + [9] * 3, np.float32)
    given = {"image": np.zeros((128, 128, 3), np.uint8), "proprioception": state}
    wanted = [0.1, 0.2, 0.3, np.pi, 0, 0, 0.03, -0.02]
    np.testing.assert_allclose(inputs.raw_state(given), wanted, atol=1e-6)


def test_differences_to_the_state_are_added():
    _, outputs = compose(LIBERO, POLICIES["pi0"], 1)
    said, raw = np.zeros((1, 50, 32)), np.array([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 9, 9]])
    np.testing.assert_allclose(outputs.apply(said, raw)[0, 0], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0])
    with pytest.raises(ValueError, match="raw_state must be given"):
        outputs.apply(said)


def test_held_parts_are_at_rest_and_dropped_ones_count_for_nothing():
    parts = ("base", "base_turn", "torso", "mode")
    accepted = Concessions(cameras={"front": "left"}, held=parts)
    _, outputs = compose(ROBOCASA, POLICIES["oft"], 5, concessions=accepted)
    actions = outputs.apply(np.ones((2, 8, 7), np.float32))
    np.testing.assert_array_equal(actions[0, 0], [1, 1, 1, 1, 1, 1, -1, 0, 0, 0, 0, -1])
    accepted = Concessions(cameras={"left": "front", "right": "blank"}, dropped=parts)
    _, outputs = compose(LIBERO, POLICIES["groot"], 5, concessions=accepted)
    assert outputs.mask.shape == (16, 32)
    assert outputs.mask[:5, :7].all() and outputs.mask.sum() == 35


def test_a_switch_between_two_conventions():
    _, outputs = compose(ROBOCASA, POLICIES["groot"], 1)
    said = np.zeros((1, 16, 32))
    np.testing.assert_allclose(outputs.apply(said)[0, 0, 11], -1)
    said[..., 11] = 1
    np.testing.assert_allclose(outputs.apply(said)[0, 0, 11], 1)


def test_pictures_come_upright_whatever_the_simulator_gives():
    turned = Meaning(
        cameras=(Camera(field="image", role="front", height=2, width=2, orientation="upside_down"),),
        action=(),
    )
    inputs, _ = compose(turned, Expectation(), 1)
    image = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    np.testing.assert_array_equal(inputs.apply({"image": image}).images["front"], image[:, ::-1, ::-1])


TOOL = Rotation(name="delta_rotation", form="axis_angle", scale=0.5, frame="tool")


@pytest.mark.parametrize(
    ("changes", "given", "said"),
    [
        ({}, {"held": ("bass",)}, "concessions.held names 'bass', which neither side has"),
        (
            {"cameras": ("front",)},
            {"cameras": {"wrist": "blank"}},
            "concessions.cameras.wrist = blank: the policy",
        ),
        ({"cameras": ("top",)}, {"cameras": {"top": "frnt"}}, "concessions.cameras.top = frnt"),
        ({"cameras": ("top",), "picture": None}, {"cameras": {"top": "blank"}}, "does not say how large"),
        ({"action": (LIBERO.action[0], TOOL, LIBERO.action[2])}, {}, "axes of the tool on one side"),
        ({"state": (Numbers(name="wheels", size=4),)}, {}, "name it in concessions.zeros to read zeros"),
        ({"action": LIBERO.action[:2]}, {}, "needs the action part 'gripper', which the policy does not say"),
        ({"action": (*LIBERO.action, Numbers(name="base", size=3))}, {}, "says the action part 'base'"),
        (
            {"state": (Numbers(name="gripper", size=2),)},
            {},
            "'gripper' is gripper gripper [2] open 0.04, -0.04",
        ),
        ({"state": (Numbers(name="eef_position", size=2),)}, {}, "eef_position [3] on one side and"),
        (
            {"state_width": 7},
            {},
            "state holds 7 numbers, this simulator's has 8",
        ),
        ({"action_width": 6}, {}, "action holds 6 numbers, this simulator's has 7"),
        ({"horizon": 4}, {}, "simulator.chunk = 5: the policy says 4 actions at once; give 1 to 4"),
        (
            {"relative": (("delta_position", "joints"),)},
            {},
            "as a difference to 'joints', but its action has",
        ),
        ({"relative": (("delta_position", "gripper"),)}, {}, "both must be there with equal sizes"),
    ],
)
def test_what_cannot_be_joined_is_one_clear_line(changes, given, said):
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        compose(LIBERO, Expectation(**changes), CHUNK, concessions=Concessions(**given))
    assert "\n" not in str(refused.value)


def test_other_axes_can_be_accepted():
    policy = Expectation(action=(LIBERO.action[0], TOOL, LIBERO.action[2]))
    _, outputs = compose(LIBERO, policy, 1, concessions=Concessions(frames=("delta_rotation",)))
    said = np.random.default_rng(0).normal(size=(1, 1, 7))
    np.testing.assert_array_equal(outputs.apply(said), said)


def test_statistics_of_another_size_are_refused():
    with pytest.raises(UserError, match="statistics of the action are of 3 numbers, its parts"):
        compose(LIBERO, Expectation(), CHUNK, action_statistics=statistics(3, 0))


def test_a_simulator_without_a_meaning_is_refused():
    with pytest.raises(UserError, match="give its SimulatorSpec a meaning"):
        compose(None, POLICIES["pi0"], CHUNK)


def test_no_state_at_all():
    blind = Meaning(cameras=(Camera(field="image", role="front", height=8, width=8),), action=LIBERO.action)
    inputs, _ = compose(blind, Expectation(picture=Picture(height=4, width=4)), 1)
    found = inputs.apply({"image": np.zeros((6, 8, 8, 3), np.uint8)})
    assert found.state.shape == (6, 0)
    inputs, _ = compose(LIBERO, Expectation(state=()), 1)
    assert inputs.apply(observation(LIBERO)).state.shape == (BATCH, 0)


def test_a_meaning_that_contradicts_the_fields_is_found():
    from rlvla3.messages import FieldSpec

    fields = [
        FieldSpec(name="image", shape=(256, 256, 3), dtype="uint8"),
        FieldSpec(name="image_2", shape=(128, 128, 3), dtype="uint8"),
        FieldSpec(name="proprioception", shape=(9,), dtype="float32"),
    ]
    found = LIBERO.faults(fields, 6)
    assert [fault.split(" is ")[0] for fault in found[:2]] == ["field 'image_2'", "field 'proprioception'"]
    assert found[2:] == ["the action has 6 numbers, its meaning 7"]
