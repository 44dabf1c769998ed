"""What a lane is given to do: nothing is lost, every wait ends."""

import threading
import time

import pytest

from rlvla3.roles.inbox import Inbox


def test_items_come_in_their_order() -> None:
    inbox: Inbox[int] = Inbox()
    for item in range(3):
        inbox.put(item)
    assert len(inbox) == 3
    assert [inbox.take(), inbox.take(), inbox.take()] == [0, 1, 2]
    assert not inbox


def test_a_wait_ends_at_its_time_and_not_before() -> None:
    inbox: Inbox[int] = Inbox()
    until_s = time.monotonic() + 0.05
    assert inbox.take(until_s) is None
    assert time.monotonic() >= until_s


def test_news_of_an_item_that_is_taken_already_end_no_wait() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    assert inbox.take() == 1
    until_s = time.monotonic() + 0.05
    assert inbox.take(until_s) is None
    assert time.monotonic() >= until_s


@pytest.mark.live
def test_no_wait_is_too_short_and_none_sleeps_through_an_item() -> None:
    inbox: Inbox[int] = Inbox()
    asked = threading.Semaphore(0)

    def give() -> None:
        for item in range(20_000):
            asked.acquire()
            inbox.put(item)

    giver = threading.Thread(target=give, daemon=True)
    giver.start()
    for item in range(20_000):
        asked.release()
        found = inbox.take(time.monotonic() + (item % 7) * 1e-6)
        while found is None:
            found = inbox.take()
        assert found == item
    giver.join(timeout=10)
    assert not giver.is_alive()
