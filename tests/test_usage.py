"""Time accounts."""

import time

import pytest

from rlvla3.usage import Share, Spent, Usage, merged, shares, since


def spin(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize("whole_process", [False, True])
def test_sections_accumulate(whole_process: bool) -> None:
    usage = Usage(whole_process)
    for _ in range(3):
        with usage("simulate"):
            spin(0.002)
    with usage("render"):
        pass
    spent = usage.snapshot()
    assert spent["simulate"].count == 3
    assert 0.006 <= spent["simulate"].cpu_s < 0.2
    assert spent["simulate"].wall_s >= spent["simulate"].cpu_s * 0.9
    assert spent["render"].count == 1
    assert spent["render"].cpu_s < 0.006


def test_a_section_that_raises_is_counted() -> None:
    usage = Usage()
    with pytest.raises(KeyError), usage("step"):
        raise KeyError
    assert usage.snapshot()["step"].count == 1


def test_shares_are_parts_of_all_members_time() -> None:
    first = {"step": Spent(wall_s=4.0, cpu_s=3.0, count=2), "wait": Spent(wall_s=6.0, cpu_s=0.0, count=2)}
    second = {"step": Spent(wall_s=8.0, cpu_s=8.0, count=4)}
    assert merged([first, second])["step"] == Spent(wall_s=12.0, cpu_s=11.0, count=6)
    assert shares([first, second], 10.0) == {
        "step": Share(wall=0.6, cpu=0.55),
        "wait": Share(wall=0.3, cpu=0.0),
    }
    assert since(second, first) == {"step": Spent(wall_s=4.0, cpu_s=5.0, count=2)}
    with pytest.raises(ValueError, match="positive time"):
        shares([first], 0.0)
