import pytest

from rlvla3.errors import UserError
from rlvla3.simulators.registry import simulator_class
from rlvla3.simulators.synthetic import Synthetic


def test_built_in_and_out_of_tree_names():
    assert simulator_class("synthetic") is Synthetic
    assert simulator_class("rlvla3.simulators.synthetic:Synthetic") is Synthetic


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("metawrld", "did you mean 'metaworld'"),
        ("nowhere.at_all:Thing", "no module 'nowhere'"),
        ("rlvla3.simulators.synthetic:Missing", "no attribute 'Missing'"),
        ("rlvla3.simulators.synthetic:Scene", "has no Settings"),
    ],
)
def test_a_bad_name_is_explained(kind, message):
    with pytest.raises(UserError, match=message):
        simulator_class(kind)
