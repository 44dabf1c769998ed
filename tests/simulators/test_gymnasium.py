import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

pytest.importorskip("gymnasium", reason="needs the gymnasium extra")

from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.simulators.gymnasium import Gymnasium
from rlvla3.simulators.gymnasium_settings import GymnasiumSettings

sys.path.insert(0, str(Path(__file__).parent))
WALK = "gymnasium_worlds:Walk"
PUSHT = "gym_pusht/PushT-v0"
START = Start(task=0, split="train", state=0)
STAY = np.array([-0.5], np.float32)
"""The action that is 0 in the environment's own units, -2 … 6."""


def simulator(env_id=WALK, **settings):
    return Gymnasium(GymnasiumSettings.model_validate({"env_id": env_id, **settings}))


@pytest.fixture
def make():
    envs = []

    def make_env(env_id=WALK, **settings):
        envs.append(simulator(env_id, **settings).make())
        return envs[-1]

    yield make_env
    for env in envs:
        env.close()


def action(own):
    """An action that is ``own`` in the environment's units."""
    return np.array([(own + 2) / 4 - 1], np.float32)


# --- observations ------------------------------------------------------------------------------


def test_without_a_transform_every_entry_is_a_field(make):
    sizes = {field.name: field.shape for field in simulator().spec.observation}
    numbers = {"point/x": (1,), "gear": (3,), "switches": (5,), "lamps": (2,), "pair/0": (2,), "pair/1": (2,)}
    assert sizes == numbers | {"camera": (72,)}
    plain = simulator("Pendulum-v1").spec
    assert [(field.name, field.shape) for field in plain.observation] == [("proprioception", (3,))]


def test_entries_are_packed_in_order_choices_as_ones(make):
    order = ["lamps", "gear", "pair/0", "pair/1", "switches", "point/x"]
    env = make(observation={"state": order})
    env.reset(START, 0)
    expected = [0, 1, 0, 0, 1, 0.25, 0.75, 0, 1, 0, 1, 0, 0, 1, env.raw["point"]["x"][0]]
    np.testing.assert_allclose(env.observe()["proprioception"], expected, rtol=1e-6)
    assert env.observe()["proprioception"].dtype == np.float32


def test_images_are_brought_to_size_channels_last_as_bytes(make):
    camera = {"source": "camera", "size": 2, "channels_first": True, "scale": 255}
    env = make(observation={"images": {"image": camera}})
    env.reset(START, 0)
    image = env.observe()["image"]
    whole = np.rint(255 * np.linspace(0, 1, 72, dtype=np.float32).reshape(3, 4, 6))
    expected = whole.reshape(3, 2, 2, 2, 3).mean((2, 4)).transpose(1, 2, 0)
    assert image.dtype == np.uint8 and image.shape == (2, 2, 3)
    np.testing.assert_array_equal(image, np.rint(expected))


def test_what_is_drawn_is_drawn_only_when_it_is_used(make):
    env = make(observation={"images": {"image": "dot()"}})
    env.reset(START, 0)
    inner = env.scene.env.unwrapped
    before = inner.drawn
    for _ in range(5):
        env.step(STAY)
    assert inner.drawn == before
    assert env.observe()["image"].max() == 51 + before
    assert inner.drawn == before + 1


@pytest.mark.pusht  # whose extra brings the package that draws the pendulum
def test_the_own_picture_is_an_additional_field_resized_by_area(make):
    env = make("Pendulum-v1", image="render", image_size=32)
    env.reset(START, 0)
    fields = env.observe()
    assert fields["image"].shape == (32, 32, 3) and fields["proprioception"].shape == (3,)
    own = env.scene.env.render().astype(float)
    assert abs(fields["image"].mean() - own.mean()) < 0.5
    assert env.picture().shape == (500, 500, 3)


def test_the_instruction_can_be_in_the_observation():
    chosen = {"state": ["gear"], "instruction": "told"}
    assert simulator(observation=chosen).spec.instructions == ("go right",)
    assert simulator(observation={"state": ["gear"]}, instruction="walk").spec.instructions == ("walk",)


def test_an_instruction_that_changes_is_refused(make):
    env = make("gymnasium_worlds:Turning", observation={"state": ["gear"], "instruction": "told"})
    env.reset(START, 0)
    with pytest.raises(UserError, match=r"the instruction changes from 'go left' to 'go right'"):
        env.reset(START, 0)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"state": ["pont/x"]}, r"names 'pont/x', .* they have .*'point/x'"),
        ({"state": ["told"]}, r"'told' is Text.*, which is no vector of numbers"),
        ({"images": {"image": "gear"}}, r"image 'image' from 'gear': a picture must be \[H, W\]"),
        ({"images": {"image": "camera"}}, r"3 or 4 channels last; it is \(3, 4, 6\)"),
        ({"images": {"image": {"source": "camera", "channels_first": True}}}, "needs a scale, such as 255"),
        ({"images": {"image": "photo()"}}, "no method photo"),
        ({"state": ["gear"], "instruction": "said"}, "names 'said'"),
        ({"state": ["gear"], "instruction": "point/x"}, "instruction = 'point/x' must name an entry of text"),
        ({"images": {"image": "told"}}, "image 'image' from 'told': it gives a str and no picture"),
        ({"images": {"image": "_observation()"}}, r"from '_observation\(\)': it gives a dict and no picture"),
        ({"images": {"image": "get_wrapper_attr()"}}, r"the method fails \(TypeError"),
        ({"images": {"image": "has_wrapper_attr()"}}, "or name one that draws in simulator.options.observ"),
    ],
)
def test_a_transform_that_does_not_fit_is_one_line(observation, message):
    with pytest.raises(UserError, match=message) as refusal:
        _ = simulator(observation=observation).spec
    assert len(str(refusal.value).splitlines()) == 1


def test_a_picture_is_no_state():
    chosen = {"state": ["view"]}
    with pytest.raises(UserError, match=r"entry 'view' is a picture \(4, 6, 3\); name it in .*images"):
        _ = simulator("gymnasium_worlds:Seeing", observation=chosen).spec
    fields = simulator("gymnasium_worlds:Seeing", observation={"images": {"image": "view"}}).spec.observation
    assert [(field.name, field.shape) for field in fields] == [("image", (4, 6, 3))]


# --- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_id": ""}, "env_id must name an environment"),
        ({"reward": "shaped"}, "reward shaped needs a potential"),
        ({"reward": "sparse"}, "success, dense, shaped or module:attribute"),
        ({"reset_options": {"start": {"low": [1], "high": [0]}}}, "none of low above that of high"),
        ({"reset_options": {"start": {"low": [1], "high": [2, 3]}}}, "must be equally many numbers"),
        ({"reach": 2.0}, "relative_to and reach belong together"),
        ({"potential_range": [1, 1]}, "two different numbers"),
        ({"observation": {"images": {"task": "x"}}}, "cannot be the name of a field"),
        ({"observation": {"instruction": "told"}}, "instruction alone is no observation"),
        ({"observation": {"images": {"image": "close()"}}}, r"'image' cannot come from close\(\)"),
        ({"observation": {"state": ["x", "y", "x"]}}, "state must differ; x is there twice, leave one out"),
        ({"observation": {"images": {"image": "x"}}, "image": "render"}, "both make the field 'image'"),
        ({"tasks": {"a": {}, "b": {}}, "step_limits": [1, 2, 3]}, "2 tasks; it has 3"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GymnasiumSettings.model_validate({"env_id": WALK, **settings})


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pendulm-v1", r"Did you mean: `Pendulum`\?"),
        ("CartPole-v1", r"actions must be a bounded Box \[A\] with low below high, they are Discrete\(2\)"),
        ("gymnasium_worlds:Choice", r"they are Discrete\(3\)"),
        ("somewhere/Thing-v0", "name the module that registers it too, as in my_module:somewhere/Thing-v0"),
        ("no_such_module:Thing", "No module named 'no_such_module'"),
        ("gymnasium_worlds:Wolk", "has no attribute 'Wolk'"),
        ("gymnasium_worlds:NOT_AN_ENVIRONMENT", "gives dict, which is no Gymnasium environment"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_line(env_id, message):
    with pytest.raises(UserError, match=message) as refusal:
        _ = simulator(env_id).spec
    assert "env_id" in str(refusal.value) and len(str(refusal.value).splitlines()) == 1


def test_an_entry_of_info_that_no_sub_step_has_is_refused_before_anything_starts():
    for settings, name in (
        ({"reward": "shaped", "potential": "far"}, "potential = 'far'"),
        ({"success_key": "done", "success_threshold": 0.5}, "success_key = 'done'"),
    ):
        with pytest.raises(UserError, match=f"simulator.options.{name}: this environment's info has no such"):
            _ = simulator(**settings).spec
    assert simulator(reward="shaped", potential="place/x").spec.action_dim == 1
    # What nobody reads at each sub-step may be missing.
    assert simulator(success_key="done", potential="far").spec.action_dim == 1


def test_without_a_step_limit_it_is_the_environments_own():
    assert simulator().spec.step_limits == (0,)
    assert simulator("Pendulum-v1").spec.step_limits == (200,)
    assert simulator("Pendulum-v1", step_limits=30).spec.step_limits == (30,)


def test_a_function_can_make_it_and_arguments_reach_it(make):
    env = make("gymnasium_worlds:blind", arguments={"goal": 3.0}, observation={"state": ["point/x"]})
    assert env.scene.env.goal == 3.0
    env.reset(START, 0)
    with pytest.raises(UserError, match="draws no pictures"):
        env.picture()


def test_a_picture_is_even_and_comes_without_being_asked_for(make):
    env = make(observation={"state": ["point/x"]})
    env.reset(START, 0)
    assert env.picture().shape == (6, 8, 3)


def test_render_without_pictures_is_one_line():
    with pytest.raises(UserError, match=r"draws no pictures, so image: render has none"):
        _ = simulator("gymnasium_worlds:Blind", image="render").spec


@pytest.mark.pusht  # as above
def test_the_fingerprint_holds_what_changes_pixels_or_physics():
    found = simulator("Pendulum-v1").spec.fingerprint
    assert set(found) == {"simulator", "env_id", "gymnasium"}
    heavy = simulator("Pendulum-v1", arguments={"g": 3.0}, image="render").spec.fingerprint
    assert json.loads(heavy["arguments"]) == {"g": 3.0}
    chosen = simulator(observation={"state": ["point/x"]}).spec.fingerprint
    assert json.loads(chosen["observation"]) == {"state": ["point/x"]}


def test_options_of_a_reset_are_drawn_for_each_initial_state(make):
    env = make(observation=X, reset_options={"start": {"low": [2.0], "high": [3.0]}})
    places = {}
    for split in ("train", "held_out", "train"):
        for state in range(20):
            env.reset(Start(task=0, split=split, state=state), 0)
            place = env.raw["point"]["x"][0]
            assert 2.0 <= place <= 3.0
            assert places.setdefault((split, state), place) == place
    assert len(set(places.values())) == 40
    assert max(places.values()) - min(places.values()) > 0.8


def test_an_option_of_a_reset_can_be_held_where_it_is(make):
    env = make(observation=X, reset_options={"start": {"low": [2.5], "high": [2.5]}})
    for state in range(3):
        env.reset(Start(task=0, split="train", state=state), 0)
        assert env.raw["point"]["x"][0] == 2.5


# --- several tasks -----------------------------------------------------------------------------

NEAR_AND_FAR = {
    "near": {"arguments": {"goal": 0.8}, "instruction": "go near"},
    "far": {"arguments": {"goal": 3.0}},
}
X = {"state": ["point/x"]}


def test_tasks_have_their_own_arguments_and_instructions(make):
    spec = simulator(tasks=NEAR_AND_FAR, observation=X, instruction="go").spec
    assert spec.tasks == ("near", "far") and spec.instructions == ("go near", "go")
    env = make(tasks=NEAR_AND_FAR, observation=X)
    rewards = []
    for task in (0, 1, 0):
        env.reset(Start(task=task, split="train", state=5), 0)
        rewards.append(env.step(STAY).reward)
    assert rewards[0] == rewards[2]
    assert rewards[0] - rewards[1] == pytest.approx(3.0 - 0.8)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"arguments": {"wide": True}}, r"'b' has other fields \(proprioception float32 \[2\]\) than 'a'"),
        ({"env_id": "Pendulum-v1"}, "tasks.b.env_id: .*names 'point/x'"),
    ],
)
def test_tasks_that_no_policy_can_play_both(other, message):
    with pytest.raises(UserError, match=message):
        _ = simulator(tasks={"a": {}, "b": other}, observation=X).spec


# --- rewards and ends --------------------------------------------------------------------------


def test_the_own_reward_is_the_default_and_the_own_end_too(make):
    env = make(observation=X, success_key="near")
    env.reset(START, 0)
    env.step(action(1 - env.raw["point"]["x"][0]))
    step = env.step(action(0.0))
    assert step.success and not step.terminated
    assert step.reward == pytest.approx(-abs(1 - env.raw["point"]["x"][0]))


@pytest.mark.parametrize(
    ("key", "threshold", "solved"),
    [("near", None, True), ("place/x", 0.9, True), ("place/x", 1.1, False), ("reward()", -0.1, True)],
)
def test_success_is_an_entry_or_a_threshold_on_one(key, threshold, solved, make):
    env = make(
        observation=X,
        success_key=key,
        success_threshold=threshold,
        reward="success",
        terminate_on_success=True,
    )
    env.reset(START, 0)
    assert not env.step(STAY).success
    step = env.step(action(1 - env.raw["point"]["x"][0]))
    assert (step.success, step.terminated, step.reward) == (solved, solved, float(solved))


def test_an_entry_that_is_not_there(make):
    env = make(observation=X)
    env.reset(START, 0)
    assert not env.step(STAY).success
    for settings in (
        {"success_key": "won", "success_threshold": 1.0},
        {"reward": "shaped", "potential": "won"},
    ):
        env = make(observation=X, **settings)
        env.reset(START, 0)
        with pytest.raises(
            UserError, match=r"= 'won': this environment's info has no such entry; it has place"
        ):
            env.step(STAY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"success_key": "won"},
            "success_key = 'won': this environment's info has no such entry; it has place",
        ),
        ({"success_key": "place"}, r"success_key = 'place': what .* no single number and .* \(dict\)"),
        ({"reward": "shaped", "potential": "place"}, r"potential = 'place': what .* \(dict\)"),
    ],
)
def test_success_and_potential_are_numbers_that_are_there_at_the_end(settings, message, make):
    env = make(env_id="gymnasium_worlds:Faulty", observation=X, **settings)
    with pytest.raises(UserError, match=message):
        env.reset(START, 0)
        env.step(STAY)


@pytest.mark.parametrize("name", ["success_key", "potential"])
def test_no_other_method_than_the_reward_says_success(name):
    with pytest.raises(
        ValidationError, match=rf"{name} must be an entry of info, or reward\(\); it is 'won\(\)'"
    ):
        simulator(observation=X, **{name: "won()"})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", r"entry 'point/x' has the shape \[2\], its space says \[1\]; mend the environment"),
        ("entry", "an observation has no entry 'point/x', which the environment's observation_space says"),
        ("reset", r"its reset must return \(observation, info\), it returned one dict"),
        ("raises", r"the environment fails: RuntimeError: no light \(gymnasium_worlds.py:\d+\); mend it"),
    ],
)
def test_an_environment_that_is_none_is_one_line(fault, message):
    with pytest.raises(UserError, match=rf"^simulator.options.env_id: .*{message}"):
        _ = simulator(env_id="gymnasium_worlds:Faulty", arguments={"fault": fault}, observation=X).spec


def test_a_choice_that_does_not_exist_is_one_line():
    chosen = {"state": ["switches"]}
    world = simulator(env_id="gymnasium_worlds:Faulty", arguments={"fault": "choice"}, observation=chosen)
    with pytest.raises(UserError, match=r"entry 'switches' does not fit its space MultiDiscrete\(\[2 3\]\)"):
        _ = world.spec


def test_a_step_of_an_older_gymnasium_is_one_line(make):
    env = make(env_id="gymnasium_worlds:Faulty", arguments={"fault": "step"}, observation=X)
    env.reset(START, 0)
    with pytest.raises(
        UserError, match=r"its step must return .* it returned a tuple of 4: dict, float, bool, dict"
    ):
        env.step(STAY)


@pytest.mark.parametrize("at_reset", [True, False])
def test_shaping_pays_differences_of_the_potential(at_reset, make):
    """Where the reset does not say the potential, the first sub-step counts as one that changed nothing."""
    settings = {"reward": "shaped", "shaping_weight": 0.25, "shaping_discount": 0.9, "step_penalty": 0.125}
    scaled = {"potential": "place/x", "potential_range": [-1.0, 3.0]}
    env = make(observation=X, arguments={"at_reset": at_reset}, **settings, **scaled)
    env.reset(START, 0)
    places, rewards = [env.raw["point"]["x"][0]], []
    for own in (0.5, -0.2, 0.1):
        rewards.append(env.step(action(own)).reward)
        places.append(env.raw["point"]["x"][0])
    potentials = [(place + 1) / 4 for place in places]
    if not at_reset:
        potentials[0] = potentials[1]
    expected = [0.25 * (0.9 * after - before) - 0.125 for before, after in itertools.pairwise(potentials)]
    assert rewards == pytest.approx(expected, abs=1e-6)


def test_a_reward_of_the_users_is_tried_with_the_entries_of_info(make):
    env = make(observation=X, reward="gymnasium_worlds:bonus")
    env.reset(START, 0)
    assert env.step(STAY).reward == pytest.approx(env.raw["point"]["x"][0])


# --- actions that are added to what the environment shows ------------------------------------


def test_relative_actions_are_added_to_an_entry(make):
    env = make(observation=X, relative_to="point/x", reach=0.5)
    env.reset(START, 0)
    for said in (1.0, -0.5, 3.0):
        before = env.raw["point"]["x"][0]
        env.step(np.array([said], np.float32))
        # Walk adds the action to where it is; told "before + 0.5·said" it therefore goes so far.
        assert env.raw["point"]["x"][0] - before == pytest.approx(before + 0.5 * min(said, 1.0), abs=1e-6)


def test_an_expert_far_away_is_followed_in_its_direction():
    near = simulator("gymnasium_worlds:Plane", relative_to="at", reach=2.0, observation={"state": ["at"]})
    env = near.make()
    env.reset(START, 0)
    at = env.raw["at"]
    np.testing.assert_allclose(env.scene.unscaled(at + np.array([8.0, 4.0]), env.raw), [1.0, 0.5])
    np.testing.assert_allclose(env.scene.unscaled(at + np.array([1.0, -0.5]), env.raw), [0.5, -0.25])
    env.close()


@pytest.mark.parametrize(
    ("entry", "message"),
    [("pont", "'pont' is no entry of numbers"), ("lamps", r"has the shape \[2\], actions have \[1\]")],
)
def test_relative_to_something_else(entry, message):
    with pytest.raises(UserError, match=message):
        _ = simulator(observation=X, relative_to=entry, reach=1.0).spec


# --- experts -----------------------------------------------------------------------------------


def test_an_expert_of_the_users_acts_in_the_environments_units(make):
    chosen = simulator(observation=X, expert="gymnasium_worlds:Guide", success_key="near", tasks=NEAR_AND_FAR)
    env = chosen.make()
    expert = chosen.expert(env)
    for task, state in ((0, 0), (1, 1), (0, 2)):
        env.reset(Start(task=task, split="train", state=state), 0)
        steps = [env.step(expert.act()) for _ in range(8)]
        assert steps[-1].success
    assert [made.episodes for made in expert._made.values()] == [2, 1]
    env.close()


def test_an_expert_that_fails_and_none_are_one_line():
    lost = simulator(observation=X, expert="gymnasium_worlds:Lost")
    env = lost.make()
    env.reset(START, 0)
    with pytest.raises(UserError, match=r"expert = 'gymnasium_worlds:Lost' fails: RuntimeError: no map"):
        lost.expert(env).act()
    with pytest.raises(LookupError, match=r"name one with simulator\.options\.expert=module:attribute"):
        simulator(observation=X).expert(env)
    env.close()


@pytest.mark.pusht
@pytest.mark.live
def test_the_expert_of_pusht_solves_the_task_at_its_own_threshold():
    pusht = simulator(PUSHT, expert="pusht")
    env = pusht.make()
    expert = pusht.expert(env)
    ends = []
    for state in range(4):
        env.reset(Start(task=0, split="demonstration", state=state), 0)
        step = env.step(expert.act())
        while not (step.terminated or step.truncated):
            step = env.step(expert.act())
        ends.append(step.success and step.terminated)
    env.close()
    assert sum(ends) >= 3


@pytest.mark.pusht
@pytest.mark.live
def test_observations_of_pusht_are_its_own_but_drawn_when_they_are_used(make):
    """``_render()`` gives the pixels of ``obs_type: pixels``, without drawing them at every sub-step."""
    drawn = make(PUSHT, arguments={"obs_type": "pixels_agent_pos"})
    lazy = make(
        PUSHT,
        arguments={"obs_type": "environment_state_agent_pos"},
        observation={"images": {"pixels": "_render()"}, "state": ["agent_pos"]},
    )
    for env in (drawn, lazy):
        env.reset(START, 0)
    for own in np.random.default_rng(0).uniform(-1, 1, (6, 2)).astype(np.float32):
        drawn.step(own)
        lazy.step(own)
    np.testing.assert_array_equal(lazy.observe()["pixels"], drawn.observe()["pixels"])
    np.testing.assert_array_equal(lazy.observe()["proprioception"], drawn.observe()["agent_pos"])


def test_an_instruction_is_text():
    with pytest.raises(UserError, match=r"'gear' must name an entry of text, it is Discrete\(3"):
        _ = simulator(observation={"state": ["point/x"], "instruction": "gear"}).spec


def test_closing_is_no_picture():
    with pytest.raises(ValueError, match=r"'image' cannot come from close\(\), which changes"):
        simulator(observation={"images": {"image": "close()"}})


def test_actions_that_cannot_differ_are_refused():
    with pytest.raises(UserError, match=r"actions must be a bounded Box .* with low below high"):
        _ = simulator("gymnasium_worlds:Still").spec
