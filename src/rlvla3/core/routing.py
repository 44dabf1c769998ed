"""Routing: which Generator's queue a request joins."""

from collections.abc import Callable, Collection

from rlvla3.core.settings import BatchingSettings
from rlvla3.messages import Slot


class Router:
    """Chooses a Generator by index. With routing ``any`` the queue is shared and the choice is
    made by whoever is free first."""

    def __init__(self, settings: BatchingSettings) -> None:
        self._settings = settings

    def route(self, slot: Slot, candidates: Collection[int], load: Callable[[int], int]) -> int:
        """A Generator index among ``candidates``: the pinned one if it is there, else the least loaded.

        ``load``: samples queued for or running on a Generator.
        """
        if self._settings.routing == "any":
            return 0
        if self._settings.routing == "pinned" and self._settings.pins[slot] in candidates:
            return self._settings.pins[slot]
        return min(candidates, key=lambda generator: (load(generator), generator))
