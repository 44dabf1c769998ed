"""Each page of an algorithm has a row, with the default, for every option."""

from pathlib import Path

import pytest

from rlvla3.algorithms.registry import BUILT_IN, algorithm_class

PAGES = Path(__file__).parent.parent / "docs" / "algorithms"


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_option_is_in_the_table_with_its_default(kind) -> None:
    page = (PAGES / f"{kind.replace('++', '-plus-plus')}.md").read_text()
    for name, field in algorithm_class(kind).Settings.model_fields.items():
        default = str(field.default).lower() if isinstance(field.default, bool) else f"{field.default}"
        shown = default.removesuffix(".0")
        assert f"| `{name}` | {shown} |" in page, (name, shown)
