"""A short piece of the long runs: ``make chaos`` and ``make soak`` are the whole."""

from pathlib import Path

import pytest

from chaos.faults import FAULTS, schedule
from chaos.ledger import Ledger
from chaos.resume import counted
from chaos.soak import Soak, broken

pytestmark = pytest.mark.live


def test_every_kind_comes_equally_often() -> None:
    found = schedule(3, 2 * len(FAULTS))
    assert found != schedule(4, 2 * len(FAULTS))
    assert found == schedule(3, 2 * len(FAULTS))
    assert {found.count(fault) for fault in FAULTS} == {2}


def test_four_faults_in_a_row_lose_nothing(tmp_path: Path) -> None:
    wanted = [("simulator", "hang"), ("generator", "kill"), ("trainer", "exception"), ("controller", "kill")]
    chosen = [fault for place in wanted for fault in FAULTS if (fault.role, fault.name) == place]
    soak = Soak(tmp_path, seed=1)
    try:
        soak.go(chosen, calm_s=3.0, every_s=6.0)
    finally:
        soak.close()
    rows = {row.name: row for row in soak.ledger.figures(soak.struck, tmp_path / "run", 3.0)}
    assert rows["faults"].value == 4
    for name in ("episodes/trained_twice", "episodes/lost", "lag/max", "lag/below_zero"):
        assert not broken(name, rows[name].value, rows[name].bound), rows[name]
    assert rows["episodes/trained"].value > 1000


def test_three_kills_of_the_whole_run_lose_nothing(tmp_path: Path) -> None:
    rows = counted(3, 1, tmp_path / "aa")
    assert rows[0].value == 3
    assert [row.value for row in rows[1:]] == [0.0, 0.0, 0.0]


def test_the_ledger_follows_the_newest_weights(tmp_path: Path) -> None:
    file = tmp_path / "trained"
    lines = [(1, 0), (2, 1), (3, 2), (2, 3), (3, 1)]
    text = [
        f'{{"version": {version}, "s": {number}, "trained": [{{"start": [0, {state}], "lag": 0}}]}}\n'
        for number, (version, state) in enumerate(lines)
    ]
    file.write_text("".join(text) + '{"version": 4, "s"')
    ledger = Ledger(file)
    assert ledger.read()
    assert ledger.versions == 5
    assert [line["trained"][0]["start"][1] for line in ledger.history()] == [0, 3, 1]
    assert ledger.doubly_trained() == 0
    with file.open("a") as more:
        more.write(': 9, "trained": [{"start": [0, 3], "lag": 1}]}\n')
    ledger.read()
    assert (ledger.versions, ledger.doubly_trained()) == (6, 1)
