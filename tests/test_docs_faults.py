"""Every test that the table of faults names exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_the_table_of_faults_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (TESTS.parent / "docs" / "faults.md").read_text()))
    found = {
        name
        for file in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    assert len(named) > 60
    assert named <= found, named - found
