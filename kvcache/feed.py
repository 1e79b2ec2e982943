"""From the core to those who follow its index, with contents copied at the right moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

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
        """Passes on the events, and copies contents (source, destination).

        All of that happens, whatever a listener or the memory raises: an event that one of them
        misses, or a block without its contents, would be wrong for good. Then it is raised.
        """
        events = self._core.drain_events() if self.has_listeners else []
        if not events and not copies:
            return
        calls = [
            *self._calls(event for event in events if event[0] != "moved"),
            *self._copies(copies),
            *self._calls(event for event in events if event[0] == "moved"),
        ]
        with ExitStack() as stack:
            for call in reversed(calls):  # the last one that is pushed is the first one made
                stack.callback(call)

    def _calls(self, events: Iterable[CoreEvent]) -> Iterator[Callable[[], object]]:
        for kind, *facts in events:
            for listener in self._listeners:
                yield partial(getattr(listener, kind), *facts)

    def _copies(self, copies: Sequence[tuple[int, int]]) -> Iterator[Callable[[], object]]:
        if self._memory is not None:
            for source, destination in copies:
                yield partial(self._memory.copy, source, destination)
