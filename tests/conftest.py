import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from terminal import as_in_a_terminal

as_in_a_terminal()

if importlib.util.find_spec("hypothesis"):  # not in the environments of single simulators
    from hypothesis import settings

    # Its default fails an example that takes 0.2 s of a wall clock, which on a busy machine says nothing.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")

NEEDED = {"pusht": "gym_pusht"}
"""Module that the tests of a marker need; without it they are skipped, and say so (``pytest -rs``)."""


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for marker, module in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            reason = f"{module} is not installed: pip install 'rlvla3[{marker}]'"
            for item in items:
                if marker in item.keywords:
                    item.add_marker(pytest.mark.skip(reason=reason))
