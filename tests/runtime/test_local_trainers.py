"""Real runs with several Trainer members and with groups: the same calls for all, and nothing left behind."""

import json
from collections import Counter
from pathlib import Path

import pytest
from echo import recorded
from live import Run, values

from rlvla3.learner import checkpoint
from rlvla3.messages import CheckpointSaved, UpdateDone, WeightsPublished
from rlvla3.runtime.local.meeting import meeting_place

pytestmark = pytest.mark.live


def several(folder: Path, members: int, **trainer: object) -> dict:
    """A learner whose members wait for each other in every update."""
    options = {"file": str(folder / "trained")}
    return {
        "learner": {"kind": "echo:MeetingFactory", "options": options},
        "trainer": {"members": members} | trainer,
    }


def trained(folder: Path, members: int) -> list[list[dict]]:
    """What each member trained, version by version."""
    names = ["trained", *(f"trained-{rank}" for rank in range(1, members))]
    return [[dict(line) for line in recorded(folder / name)] for name in names]


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("mode", ["as", "aa"])
def test_members_share_what_is_trained(members: int, mode: str, tmp_path: Path) -> None:
    changes = several(tmp_path, members, batch=8, micro_batch=1), {"schedule": {"mode": mode}}
    run = Run(tmp_path, values(*changes, {"schedule": {"streaming": mode == "aa"}})).go().trained(6)
    lines = trained(tmp_path, members)
    for version in range(6):
        assert [line[version]["version"] for line in lines] == [version + 1] * members
        assert len({line[version]["micro_batches"] for line in lines}) == 1
        assert sum(len(line[version]["trained"]) for line in lines) == 8
        sizes = [len(line[version]["trained"]) for line in lines]
        assert max(sizes) - min(sizes) <= 1
    episodes = [item["episode"] for line in lines for version in line for item in version["trained"]]
    assert len(set(episodes)) == 48
    tells = {event.member for event in run.watcher.of(WeightsPublished) + run.watcher.of(CheckpointSaved)}
    assert tells == {"trainer-0"}
    assert len(run.watcher.of(UpdateDone)) == 6 * members
    figures = [t for t in run.watcher.telemetry if t.source == "update"]
    assert {t.member for t in figures} == {"trainer-0"} and len(figures) == 6
    assert not list(tmp_path.glob("*.store")), "where they met is gone"


def test_some_members_may_have_nothing_to_train(tmp_path: Path) -> None:
    Run(tmp_path, values(several(tmp_path, 3, batch=2, micro_batch=2))).go().trained(6)
    lines = trained(tmp_path, 3)
    assert [[len(version["trained"]) for version in line] for line in lines] == [[1] * 6, [1] * 6, [0] * 6]


def test_several_members_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    Run(tmp_path, values(several(tmp_path, 2, updates=3))).go().trained(3)
    path = checkpoint.find(tmp_path, resume=True)
    state = json.loads(checkpoint.engine_state(path))
    Run(tmp_path, values(several(tmp_path, 2, updates=5)), resume=(path, state)).go().trained(5)
    assert [[line["version"] for line in lines] for lines in trained(tmp_path, 2)] == [[1, 2, 3, 4, 5]] * 2


def test_a_lost_member_ends_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, values(several(tmp_path, 2, updates=1000)))
    run.watcher.when(lambda engine: engine.intake.version >= 2, run.send("trainer-1", 9))
    run.go()
    assert run.stop.failed
    assert run.stop.reason == "trainer-1 was lost: killed by SIGKILL"
    assert not list(tmp_path.glob("*.store"))


def test_groups_are_trained_whole_and_equal_ones_replaced(tmp_path: Path) -> None:
    """No episode of ``delay`` is a success, so every group is equal: one of each version is replaced."""
    changes = (
        several(tmp_path, 2, batch=12, micro_batch=3),
        {"algorithm": {"kind": "echo:Grouped", "options": {"size": 3, "replacements": 1}}},
    )
    run = Run(tmp_path, values(*changes)).go().trained(6)
    lines = trained(tmp_path, 2)
    for line in lines:
        for version in line:
            groups = Counter(item["group"] for item in version["trained"])
            assert set(groups.values()) == {3}
    items = [item for line in lines for version in line for item in version["trained"]]
    assert len({(item["group"], *item["start"]) for item in items}) == 24, "a group has one start"
    assert run.engine.statistics.dropped == {"equal_group": 18}
    assert run.engine.statistics.equal_groups == 30


def test_what_a_killed_runtime_left_misleads_nobody(tmp_path: Path) -> None:
    (tmp_path / "trainers.store").write_text("0 1\n")
    with meeting_place(tmp_path) as path:
        assert path.read_text() == ""
    assert not path.exists()
