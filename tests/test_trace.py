"""The timeline file."""

import json
from pathlib import Path

from rlvla3.trace import Tracer, write_trace


def test_members_become_processes_and_lanes_threads(tmp_path: Path) -> None:
    simulator, generator = Tracer(10), Tracer(10)
    simulator.span("step", 100.5, 100.75, lane="lane-0", slot=3)
    simulator.instant("done", 100.75, lane="lane-1")
    generator.counter("queue", 100.25, 4)
    write_trace(tmp_path / "t.json", {"simulator-0": simulator.take(), "generator-0": generator.take()})
    rows = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {(r["pid"], r["tid"]): r["args"]["name"] for r in rows if r["name"] == "thread_name"}
    assert names == {(1, 1): "lane-0", (1, 2): "lane-1", (2, 1): "generator-0"}
    assert [r["args"]["name"] for r in rows if r["name"] == "process_name"] == ["simulator-0", "generator-0"]
    step, done, queue = (r for r in rows if r["ph"] != "M")
    assert step == {
        "ph": "X",
        "name": "step",
        "ts": 250000.0,
        "dur": 250000.0,
        "pid": 1,
        "tid": 1,
        "args": {"slot": 3},
    }
    assert (done["ph"], done["ts"], done["tid"], done["s"]) == ("i", 500000.0, 2, "t")
    assert (queue["ph"], queue["ts"], queue["args"]) == ("C", 0.0, {"queue": 4})


def test_memory_is_bounded_and_the_newest_are_kept() -> None:
    tracer = Tracer(2)
    for index in range(5):
        tracer.instant(str(index), float(index))
    assert tracer.dropped == 3
    assert [event.name for event in tracer.take()] == ["3", "4"]
    assert tracer.take() == []
    assert tracer.dropped == 3


def test_off_records_nothing(tmp_path: Path) -> None:
    tracer = Tracer()
    tracer.span("step", 0.0, 1.0)
    assert not tracer.enabled
    assert tracer.take() == []
    write_trace(tmp_path / "t.json", {})
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == []
