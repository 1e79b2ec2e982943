"""From the core to those who follow its index, with contents copied at the right moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvcache.core import CacheCore, CoreEvent
from kvcache.events import IndexListener
from kvcache.memory import BlockMemory


class IndexFeed:
    """Tells listeners what has happened to the index since the last time.

    What was removed is told before contents are copied over it, what was moved after that.
    """

    def __init__(self, core: CacheCore, memory: BlockMemory | None) -> None:
        self._core = core
        self._memory = memory
        self._listeners: list[IndexListener] = []
        self.has_listeners = False  # an attribute: asked for every token

    def add(self, listener: IndexListener) -> None:
        """Tells it, too, from now on."""
        self._core.record_events = True
        self._listeners.append(listener)
        self.has_listeners = True

    def tell(self, copies: Sequence[tuple[int, int]] = ()) -> None:
        """Passes on the events, and copies contents (source, destination)."""
        events = self._core.drain_events() if self.has_listeners else []
        self._pass_on(event for event in events if event[0] != "moved")
        if self._memory is not None:
            for source, destination in copies:
                self._memory.copy(source, destination)
        self._pass_on(event for event in events if event[0] == "moved")

    def _pass_on(self, events: Iterable[CoreEvent]) -> None:
        for kind, *facts in events:
            for listener in self._listeners:
                getattr(listener, kind)(*facts)
