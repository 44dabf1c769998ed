"""What is suggested for a name that was refused."""

from hypothesis import given
from hypothesis import strategies as st

from rlvla3.errors import meant, near_names


@given(st.text(max_size=6), st.lists(st.text(max_size=6)))
def test_a_refused_name_is_never_suggested(name: str, known: list[str]) -> None:
    assert name not in near_names(name, [*known, name], cutoff=0.0)


def test_the_nearest_comes_first() -> None:
    assert near_names("envz", ["env", "envs", "slots"]) == ["env", "envs"]
    assert meant("door-opn", ["door-open", "window"], "none") == "did you mean door-open?"
    assert meant("x", ["door-open"], "names are like door-open") == "names are like door-open"
