"""Golden numbers of the scheduling benchmark, in virtual time."""

import pytest

from rlvla3.schedule_benchmark import REFERENCE_STEPS_S, predicted_steps_s


@pytest.mark.parametrize("mode", REFERENCE_STEPS_S)
def test_every_schedule_reaches_its_reference(mode):
    assert predicted_steps_s(mode, updates=8) == pytest.approx(REFERENCE_STEPS_S[mode], rel=0.02)
