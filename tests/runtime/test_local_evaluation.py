"""Evaluation in real runs: each held-out episode once, whoever is lost, however many envs there are."""

import signal
from pathlib import Path

import av
import pytest
from live import Run, fault, faults, values

from rlvla3.assembly import Assembly
from rlvla3.config import Config
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description

pytestmark = pytest.mark.live

EVALUATION = {
    "evaluation": {"every_versions": 3, "at_start": True, "episodes": 12},
    "trainer": {"updates": 6},
    "health": {"heartbeat_timeout_s": 2.5},
}


def complete(run: Run, versions: list[int], episodes: int) -> None:
    """Each evaluation has each held-out state once, in order."""
    assert [report.version for report in run.watcher.evaluations] == versions
    for report in run.watcher.evaluations:
        assert [t.start.state for t in report.trajectories] == list(range(episodes))
        assert {t.start.split for t in report.trajectories} == {"held_out"}


def test_evaluation_among_the_rollouts(tmp_path: Path) -> None:
    run = Run(tmp_path, values(EVALUATION)).go().trained(6)
    complete(run, [0, 3, 6], 12)
    assert all(
        t.sub_steps == 12 and t.end == "truncated" for r in run.watcher.evaluations for t in r.trajectories
    )
    assert run.engine.accounting()["started"] == 48, "evaluation costs no training start"


@pytest.mark.parametrize("name", ["simulator-1", "generator-0"])
def test_a_member_lost_in_the_middle_of_an_evaluation(name: str, tmp_path: Path) -> None:
    slow = {"simulator": {"options": {"mean_ms": 5}}}
    run = Run(tmp_path, values(EVALUATION, slow))
    run.watcher.when(
        lambda e: e.evaluation.version == 3 and 0 < len(e.evaluation._done) < 9,
        run.send(name, signal.SIGKILL),
    )
    run.go().trained(6)
    complete(run, [0, 3, 6], 12)
    assert [member for member, _, _ in run.watcher.lost] == [name]
    assert run.engine.statistics.given_up == 0
    assert all(t.sub_steps == 12 for report in run.watcher.evaluations for t in report.trajectories)


def test_a_held_out_state_that_always_fails_counts_as_a_failure(tmp_path: Path) -> None:
    changes = faults(fault("exception", 5, split="held_out", step=3))
    run = Run(tmp_path, values(EVALUATION, changes, {"evaluation": {"every_versions": 0}})).go().trained(6)
    complete(run, [0], 12)
    (report,) = run.watcher.evaluations
    assert report.trajectories[5].sub_steps == 0
    assert sum(t.sub_steps == 12 for t in report.trajectories) >= 8


def reach(envs: int, **changes) -> dict:
    """A pure evaluation of ``reach`` with the small network, one batch shape whatever the envs."""
    return values(
        {
            "simulator": {
                "kind": "synthetic",
                "options": {
                    "task": "reach",
                    "mean_ms": 0,
                    "latency": "constant",
                    "cv": 0,
                    "step_limits": 9,
                    "colours": ["red", "blue"],
                },
                "members": 1,
                "envs": envs,
                "slots": min(envs, 2),
                "chunk": 3,
            },
            "policy": {"kind": "tiny", "options": {}},
            "learner": {"kind": "reinforcement", "options": {}},
            "schedule": {"mode": "as", "deterministic": True},
            "evaluation": {"episodes": 3},
        },
        changes,
    )


def plain(config: dict) -> dict:
    """Without the default run's options of other kinds."""
    config["simulator"]["options"] = {"task": "reach", "step_limits": 9, "colours": ["red", "blue"]}
    config["policy"]["options"] = {}
    config["learner"]["options"] = {}
    return config


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """Fresh weights of the small network, as an export."""
    assembly = Assembly(Config.model_validate(plain(reach(1))), training=False)
    target = tmp_path_factory.mktemp("weights") / "fresh"
    model = assembly.policy.build("cpu", 0)
    description = Description(
        version=0, score=None, fingerprint=assembly.fingerprint(), config=assembly.config.model_dump_json()
    )
    checkpoint.save_weights(target, model.arrays(), description)
    return target


def test_outcomes_do_not_depend_on_the_number_of_envs(weights: Path, tmp_path: Path) -> None:
    outcomes = []
    for envs in (1, 3, 8):
        config = plain(reach(envs))
        run = Run(tmp_path / str(envs), config, training=False, weights=str(weights)).go(90)
        assert (run.stop.reason, run.stop.failed) == ("all evaluation episodes are done", False)
        (report,) = run.watcher.evaluations
        assert len(report.trajectories) == 6, "three states of each of two tasks"
        outcomes.append(
            [(t.episode, t.start, t.success, t.sub_steps, t.total_reward) for t in report.trajectories]
        )
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len({outcome[4] for outcome in outcomes[0]}) > 3, "episodes differ from one another"


def test_evaluation_films_what_was_asked_for(tmp_path: Path) -> None:
    config = values({"evaluation": {"episodes": 3, "videos": 2}})
    assembly = Assembly(Config.model_validate(config), training=False)
    policy = assembly.policy.build("cpu", 0)
    description = Description(
        version=4, score=None, fingerprint=assembly.fingerprint(), config=assembly.config.model_dump_json()
    )
    checkpoint.save_weights(tmp_path / "weights", policy.arrays(), description)
    videos = tmp_path / "videos"
    run = Run(
        tmp_path / "run", config, training=False, weights=str(tmp_path / "weights"), videos=str(videos)
    ).go()
    assert run.watcher.lost == []
    assert [report.version for report in run.watcher.evaluations] == [4]
    assert sorted(path.name for path in videos.iterdir()) == ["delay-0-0.mp4", "delay-0-1.mp4"]
    for path in videos.iterdir():
        with av.open(str(path)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 13
