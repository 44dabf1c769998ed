import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from terminal import as_in_a_terminal

as_in_a_terminal()

NEEDED = {"pusht": "gym_pusht"}
"""Module that the tests of a marker need; without it they are skipped, and say so (``pytest -rs``)."""


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for marker, module in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            reason = f"{module} is not installed: pip install 'rlvla3[{marker}]'"
            for item in items:
                if marker in item.keywords:
                    item.add_marker(pytest.mark.skip(reason=reason))
