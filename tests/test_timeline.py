import json

from rlvla3.messages import (
    ApplyActions,
    InferenceDone,
    Member,
    MemberLost,
    ObservationReady,
    RunInference,
    Slot,
    Version,
)
from rlvla3.timeline import Timeline

SIMULATOR, GENERATOR = Member("simulator-0"), Member("generator-0")


def spans(path):
    rows = json.loads(path.read_text())["traceEvents"]
    return {row["name"]: row for row in rows if row["ph"] == "X"}


def test_work_is_a_span_from_its_command_to_its_event(tmp_path) -> None:
    timeline = Timeline()
    timeline.command(RunInference(member=GENERATOR, batch=1, channel="rollout", requests=()), 10.0)
    timeline.event(InferenceDone(member=GENERATOR, batch=1, version=Version(7)), 10.25)
    timeline.command(ApplyActions(member=SIMULATOR, slots=((Slot(3), 5),)), 10.25)
    timeline.event(ObservationReady(member=SIMULATOR, slot=Slot(3), seq=6, rows=(), chunks=()), 10.3)
    timeline.write(tmp_path / "trace.json")
    found = spans(tmp_path / "trace.json")
    assert (found["inference"]["ts"], found["inference"]["dur"]) == (0.0, 250_000.0)
    assert found["inference"]["args"] == {"samples": 0, "version": 7}
    assert (found["chunk"]["ts"], found["chunk"]["dur"]) == (250_000.0, 50_000.0)
    assert found["chunk"]["pid"] != found["inference"]["pid"]


def test_a_lost_member_ends_nothing(tmp_path) -> None:
    timeline = Timeline()
    timeline.command(ApplyActions(member=SIMULATOR, slots=((Slot(0), 1),)), 1.0)
    timeline.event(MemberLost(member=SIMULATOR, reason="killed"), 2.0)
    timeline.event(ObservationReady(member=SIMULATOR, slot=Slot(0), seq=0, rows=(), chunks=()), 9.0)
    timeline.write(tmp_path / "trace.json")
    assert spans(tmp_path / "trace.json") == {}
