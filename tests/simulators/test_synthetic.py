import subprocess
import sys
import time

import numpy as np
import pytest

from rlvla3.messages import Start
from rlvla3.simulators.synthetic import Synthetic, SyntheticSettings, latency_s
from rlvla3.simulators.synthetic_reach import COLOURS, OWN_STEP_LIMIT


def start(state=0, task=0, split="train"):
    return Start(task=task, split=split, state=state)


@pytest.mark.parametrize("latency", ["log_normal", "heavy_tail"])
def test_latency_has_the_mean_and_spread_asked_for(latency):
    settings = SyntheticSettings(task="delay", mean_ms=8.0, cv=0.4, latency=latency)
    drawn = np.array([latency_s(settings, start(state), step) for state in range(60) for step in range(100)])
    assert drawn.mean() == pytest.approx(0.008, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(0.4, rel=0.15)


def test_latency_depends_on_seed_start_and_sub_step_only():
    settings = SyntheticSettings(task="delay", mean_ms=(5.0, 5.0), cv=0.5, latency="log_normal", seed=3)
    other_seed = settings.model_copy(update={"seed": 4})
    reference = latency_s(settings, start(1), 2)
    assert latency_s(settings, start(1), 2) == reference
    variants = {
        reference,
        latency_s(settings, start(1), 3),
        latency_s(settings, start(2), 2),
        latency_s(settings, start(1, task=1), 2),
        latency_s(settings, start(1, split="held_out"), 2),
        latency_s(other_seed, start(1), 2),
    }
    assert len(variants) == 6


def test_a_sub_step_really_takes_its_latency():
    env = Synthetic(SyntheticSettings(task="delay", mean_ms=20.0)).make()
    env.reset(start(), 0)
    begin_s = time.perf_counter()
    env.step(np.zeros(4, np.float32))
    assert time.perf_counter() - begin_s >= 0.02


def test_reach_is_always_solved_well_inside_its_limit():
    simulator = Synthetic(SyntheticSettings(colours=("red", "green", "blue", "yellow")))
    env = simulator.make()
    expert = simulator.expert(env)
    for state in range(100):
        env.reset(start(state, task=state % 4), 0)
        steps = 1
        while not (step := env.step(expert.act())).terminated:
            steps += 1
        assert step.success and 3 <= steps <= 40 < OWN_STEP_LIMIT


def test_reach_asks_for_another_colour_in_the_same_picture():
    env = Synthetic(SyntheticSettings()).make()
    pictures, targets = [], []
    for task in range(3):
        env.reset(start(5, task=task), 0)
        pictures.append(env.observe()["image"])
        targets.append(env._target.tobytes())
    assert (pictures[0] == pictures[1]).all() and (pictures[0] == pictures[2]).all()
    assert len(set(targets)) == 3
    drawn = {tuple(pixel) for pixel in pictures[0].reshape(-1, 3).tolist()}
    assert drawn >= set(COLOURS.values())


def test_shaped_reward_adds_the_weighted_potential_difference():
    env = Synthetic(SyntheticSettings(shaping_weight=0.5, shaping_discount=1.0)).make()
    env.reset(start(), 0)
    before = np.hypot(*(env._target - env._pointer))
    step = env.step(env.way())
    after = np.hypot(*(env._target - env._pointer))
    assert step.reward == pytest.approx(0.5 * (before - after) / 2)


def test_dense_reward_and_a_penalty_for_each_step():
    for reward, expected in (("dense", lambda after: 1 - after / 2 - 0.1), ("success", lambda after: -0.1)):
        env = Synthetic(SyntheticSettings(reward=reward, step_penalty=0.1)).make()
        env.reset(start(), 0)
        step = env.step(env.way())
        after = np.hypot(*(env._target - env._pointer))
        assert not step.success
        assert step.reward == pytest.approx(expected(after))


def test_a_marked_fault_strikes_once(tmp_path):
    fault = {"kind": "exception", "start_state": 0, "step": 1, "marker": str(tmp_path / "struck")}
    env = Synthetic(SyntheticSettings.model_validate({"task": "delay", "faults": [fault]})).make()
    env.reset(start(), 0)
    with pytest.raises(RuntimeError, match="scripted fault"):
        env.step(np.zeros(4, np.float32))
    env.reset(start(), 0)
    env.step(np.zeros(4, np.float32))


def test_slow_reset_sleeps():
    fault = {"kind": "slow_reset", "start_state": 3, "seconds": 0.02}
    env = Synthetic(SyntheticSettings.model_validate({"task": "delay", "faults": [fault]})).make()
    begin_s = time.perf_counter()
    env.reset(start(3), 0)
    assert time.perf_counter() - begin_s >= 0.02


@pytest.mark.live
def test_crash_kills_its_process_and_hang_never_returns():
    code = (
        "import numpy as np\nfrom rlvla3.messages import Start\n"
        "from rlvla3.simulators.synthetic import Synthetic, SyntheticSettings\n"
        "fault = {{'kind': {kind!r}, 'start_state': 0, 'step': 1}}\n"
        "settings = SyntheticSettings.model_validate({{'task': 'delay', 'faults': [fault]}})\n"
        "env = Synthetic(settings).make()\n"
        "env.reset(Start(task=0, split='train', state=0), 0); print('begun', flush=True)\n"
        "env.step(np.zeros(4, np.float32)); print('ended', flush=True)"
    )
    crash = subprocess.run([sys.executable, "-c", code.format(kind="crash")], capture_output=True, text=True)
    assert (crash.returncode, crash.stdout) == (-9, "begun\n")
    with subprocess.Popen(
        [sys.executable, "-c", code.format(kind="hang")], stdout=subprocess.PIPE, text=True
    ) as hang:
        assert hang.stdout.readline() == "begun\n"
        with pytest.raises(subprocess.TimeoutExpired):
            hang.wait(0.3)
        hang.kill()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_limits": [1, 2]}, "3 tasks"),
        ({"mean_ms": -1}, "0 or more"),
        ({"latency": "heavy_tail"}, "cv > 0"),
        ({"colour": ["red"]}, "colour"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SyntheticSettings.model_validate(settings)


def distance_reward(info, success, dense):
    return 2 * dense - 1


def test_a_reward_of_the_users_own():
    own = Synthetic(SyntheticSettings(reward=f"{__name__}:distance_reward")).make()
    dense = Synthetic(SyntheticSettings(reward="dense")).make()
    own.reset(start(3), 0)
    dense.reset(start(3), 0)
    action = np.ones(2, np.float32)
    assert own.step(action).reward == pytest.approx(2 * dense.step(action).reward - 1)
