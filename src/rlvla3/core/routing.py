"""Routing: which Generator's queue a request joins."""

from collections.abc import Callable, Collection

from rlvla3.core.settings import BatchingSettings
from rlvla3.messages import Slot


class Router:
    """Chooses a Generator by index. With routing ``any`` the queue is shared and the choice is
    made by whoever is free first."""

    def __init__(self, settings: BatchingSettings) -> None:
        self._settings = settings

    def route(self, slot: Slot, serving: Collection[int], load: Callable[[int], int]) -> int:
        """A Generator index among ``serving``; if none serves, the one it would go to later.

        ``load``: samples queued for or running on a Generator.
        """
        if self._settings.routing == "any":
            return 0
        if self._settings.routing == "pinned":
            pinned = self._settings.pins[slot]
            if pinned in serving or not serving:
                return pinned
        if not serving:
            return 0
        return min(serving, key=lambda generator: (load(generator), generator))
