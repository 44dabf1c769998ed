"""Real runs without faults: every mode trains what it should, on data that is verified row by row."""

import os
import signal
from pathlib import Path

import pytest
from echo import read_digests, recorded
from live import Run, members_of, values

from rlvla3.messages import Member, MemberReady, UpdateDone

pytestmark = pytest.mark.live


def recording(folder: Path, **options) -> dict:
    """A learner that verifies and records, into the folder ``folder``."""
    return {"learner": {"kind": "echo:Recording", "options": {"file": str(folder / "trained"), **options}}}


@pytest.mark.parametrize("mode", ["ss", "as", "aa_barrier", "aa"])
def test_every_mode_trains_verified_trajectories(mode: str, tmp_path: Path) -> None:
    changes = recording(tmp_path) | {"schedule": {"mode": mode}}
    run = Run(tmp_path, values(changes)).go().trained(6)
    lines = recorded(tmp_path / "trained")
    assert [line["version"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(len(line["trained"]) == 8 for line in lines)
    trained = [item for line in lines for item in line["trained"]]
    bound = 1 if mode == "aa" else 0
    assert all(0 <= item["lag"] <= bound for item in trained)
    assert len({item["episode"] for item in trained}) == 48, "no episode is trained twice"
    assert len({tuple(item["start"]) for item in trained}) == 48
    assert run.watcher.lost == []
    assert run.engine.accounting()["started"] == 48, "what is started is trained"


def test_segments_over_several_generators(tmp_path: Path) -> None:
    """Episodes span versions and Generators; pieces of each episode follow one another."""
    changes = recording(tmp_path) | {
        "schedule": {"mode": "aa", "max_lag": 2, "streaming": True},
        "trainer": {"trajectory": "segment", "chunks": 2, "updates": 5},
        "simulator": {"options": {"step_limits": 31, "mean_ms": 0.5}, "slots": (3, 1)},
        "generator": {"members": 2, "routing": "least_loaded", "max_batch_size": 6},
    }
    Run(tmp_path, values(changes)).go().trained(5)
    pieces: dict[int, list[int]] = {}
    for line in recorded(tmp_path / "trained"):
        for item in line["trained"]:
            pieces.setdefault(item["episode"], []).append(item["first_chunk"])
    for episode, chunks in pieces.items():
        assert len(set(chunks)) == len(chunks), f"episode {episode}: {chunks}"
        assert all(chunk % 2 == 0 for chunk in chunks)


def test_a_slow_trainer_throttles_its_simulators(tmp_path: Path) -> None:
    """Rows are bounded by the credits, B x (L + 1) trajectories, however slow the Trainer is."""
    changes = {
        "learner": {"options": {"ms_per_sample": 2.5}},
        "trainer": {"batch": 4, "updates": 6},
        "schedule": {"max_lag": 2},
    }
    run = Run(tmp_path, values(changes)).go().trained(6)
    assert max(run.watcher.rows) <= 4 * 3
    assert max(run.watcher.rows) >= 4 * 3 - 1, "the bound is used"
    spent = [s - t for (s, e), (t, _) in zip(run.watcher.events[1:], run.watcher.events, strict=False)]
    assert max(spent) < 5


def test_delays_with_a_heavy_tail_abort_nothing_and_show(tmp_path: Path) -> None:
    """A step may take fifty times as long as most: nobody is blamed, and the longest turn is a figure."""
    delays = {"mean_ms": 2, "cv": 6, "latency": "heavy_tail"}
    changes = {"simulator": {"options": delays}, "trainer": {"updates": 12}}
    run = Run(tmp_path, values(recording(tmp_path), changes)).go().trained(12)
    assert run.watcher.lost == []
    statistics = run.engine.statistics
    assert statistics.turns > 200
    assert statistics.turn_max_s > 5 * statistics.turn_s / statistics.turns


def test_skipped_updates_are_trained_again_with_new_trajectories(tmp_path: Path) -> None:
    run = Run(tmp_path, values(recording(tmp_path, skip=(2, 3)), {"trainer": {"updates": 4}})).go().trained(4)
    assert run.engine.statistics.dropped == {"skipped_update": 16}
    skipped = [bool(event.skipped) for event in run.watcher.of(UpdateDone)]
    assert skipped == [False, True, True, False, False, False]
    trained = [i["episode"] for line in recorded(tmp_path / "trained") for i in line["trained"]]
    assert len(set(trained)) == len(trained) == 32


def test_too_many_skipped_updates_end_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, values(recording(tmp_path, skip=(2, 3, 4)))).go()
    assert run.stop.failed
    assert "3 updates in a row were skipped" in run.stop.reason
    assert run.stop.reason.endswith("because of an order of the test")


def test_members_hold_no_descriptors_of_others(tmp_path: Path) -> None:
    run = Run(tmp_path, values({"trainer": {"updates": 1}}))
    held: dict[str, list[str]] = {}

    def look() -> None:
        for name, pid in members_of(os.getpid()).items():
            held[name] = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]

    run.watcher.when(lambda engine: engine.statistics.trained > 0, look)
    run.go().trained(1)
    assert sorted(held) == ["generator-0", "simulator-0", "simulator-1", "trainer-0"]
    sockets = [target for targets in held.values() for target in targets if target.startswith("socket:")]
    assert len(sockets) == len(set(sockets)) == 4, "one connection each, nobody else's"
    for name, targets in held.items():
        memories = {t for t in targets if t.startswith("/memfd:")}
        used = (
            ("slab",) if name.startswith("simulator") else ("slab", "rollout-weights", "evaluation-weights")
        )
        assert memories == {f"/memfd:{memory} (deleted)" for memory in used}
        others = {t for t in targets if not t.startswith(("socket:", "/memfd:", "/dev/null"))}
        assert others == {str(tmp_path / "logs" / f"{name}.log")}, f"{name}: {others}"


def test_members_have_a_session_of_their_own(tmp_path: Path) -> None:
    """Ctrl-C on the terminal must reach the controller only."""
    run = Run(tmp_path, values({"trainer": {"updates": 1}}))
    sessions = []
    run.watcher.when(
        lambda engine: engine.statistics.trained > 0,
        lambda: sessions.extend(os.getsid(pid) == pid for pid in members_of(os.getpid()).values()),
    )
    run.go().trained(1)
    assert sessions == [True] * 4


@pytest.mark.parametrize("late", ["simulator-1", "generator-0", "trainer-0"])
def test_late_members_are_waited_for(late: str, tmp_path: Path) -> None:
    """One member starts when all others are ready: no order of arrival stalls the run."""
    run = Run(tmp_path, values({"trainer": {"updates": 2}}))
    runtime, spawn = run.runtime, run.runtime._spawn

    def hold(member: Member) -> None:
        spawn(member)
        if member == late:
            run.send(late, signal.SIGSTOP)()

    runtime._spawn = hold  # type: ignore[method-assign]
    run.watcher.when(lambda _: len(run.watcher.of(MemberReady)) == 3, run.send(late, signal.SIGCONT))
    run.go().trained(2)
    assert late not in [event.member for event in run.watcher.of(MemberReady)[:3]]


def test_a_thousand_publishes_under_load_arrive_whole(tmp_path: Path) -> None:
    """Two Generators load 400 KB while they serve; what they act with is what the Trainer published."""
    file = tmp_path / "published"
    changes = {
        "simulator": {"options": {"mean_ms": 0, "step_limits": 3}},
        "policy": {
            "kind": "echo:DigestPolicy",
            "options": {"folder": str(tmp_path), "weight_count": 100_000, "base_ms": 0, "per_sample_ms": 0},
        },
        "learner": {
            "kind": "echo:Digests",
            "options": {"file": str(file), "weight_count": 100_000, "ms_per_sample": 0},
        },
        "generator": {"members": 2, "linger_ms": 0},
        "trainer": {"batch": 2, "micro_batch": 2, "updates": 1000},
        "schedule": {"max_lag": 2},
        "checkpoint": {"every_versions": 0},
    }
    Run(tmp_path, values(changes)).go(120.0).trained(1000)
    published = dict(read_digests(file))
    assert sorted(published) == list(range(1001))
    assert len(set(published.values())) == 1001, "every version has other weights"
    generators = sorted(tmp_path.glob("generator-*"))
    assert len(generators) == 2
    for loaded in map(read_digests, generators):
        versions = [version for version, _ in loaded]
        assert len(versions) > 300
        assert versions == sorted(set(versions)), "a Generator's version never goes back"
        assert all(published[version] == digest for version, digest in loaded)
