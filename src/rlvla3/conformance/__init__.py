"""What every simulator adapter must keep, as checks that anybody can run over an adapter of their own.

``rlvla3 check-simulator KIND`` runs them all. In a test of your own::

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_my_adapter(check):
        with Subject("mine:Mine", {"size": 64}, Profile(lift=(0, 0, 1))) as subject:
            check(subject)

A check that fails raises ``ConformanceError``; one that cannot be made raises ``Skipped`` with the reason,
which pytest and unittest take for a skipped test. See docs/simulators/own.md.
"""

from rlvla3.conformance.subject import ConformanceError, Profile, Skipped, Subject
from rlvla3.conformance.suite import CHECKS, LIVE, Outcome, run

__all__ = ["CHECKS", "LIVE", "ConformanceError", "Outcome", "Profile", "Skipped", "Subject", "run"]
