"""What the Python core tells of itself between two drains."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

# See CacheCore.drain_events and drain_samples.
CoreEvent = (
    tuple[Literal["stored"], bytes, int | None, tuple[int, ...], tuple[int, ...]]
    | tuple[Literal["removed"], tuple[int, ...]]
    | tuple[Literal["cleared"], bytes | None]
    | tuple[Literal["moved"], tuple[tuple[int, int], ...]]
)
CoreSample = tuple[int, int, int, int]
EVICTED, USED_AGAIN = 0, 1  # kinds of samples
_SAMPLES = 4096  # that are kept
_SAMPLED_EVERY = 64  # blocks


class EventRecorder:
    """The changes of the index, in order; records nothing while that is not wanted."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self._events: list[CoreEvent] = []
        self._removed: list[int] = []  # since the last event of another kind

    def want(self, is_wanted: bool) -> None:
        """Starts or stops to record; what happened before is not told."""
        if is_wanted != self.is_wanted:
            self.drain()
        self.is_wanted = is_wanted

    def stored(
        self, namespace: bytes, parent: int | None, blocks: Sequence[int], tokens: array[int]
    ) -> None:
        """Blocks that continue each other were inserted behind a parent."""
        self._add(("stored", namespace, parent, tuple(blocks), tuple(tokens)))

    def removed(self, block: int) -> None:
        """A block was evicted."""
        if self.is_wanted:
            self._removed.append(block)

    def cleared(self, namespace: bytes | None) -> None:
        """A namespace (None: all) was forgotten."""
        self._add(("cleared", namespace))

    def moved(self, moves: Sequence[tuple[int, int]]) -> None:
        """Blocks have other numbers now."""
        self._add(("moved", tuple(moves)))

    def drain(self) -> list[CoreEvent]:
        """The events since the last call."""
        self._close_removed()
        events, self._events = self._events, []
        return events

    def _add(self, event: CoreEvent) -> None:
        if self.is_wanted:
            self._close_removed()
            self._events.append(event)

    def _close_removed(self) -> None:
        if self._removed:
            self._events.append(("removed", tuple(self._removed)))
            self._removed = []


class LifeSampler:
    """How long blocks live, lie idle and are used again: of every 64th, in ticks."""

    def __init__(self) -> None:
        self._born: dict[int, int] = {}  # sampled blocks of the index -> tick
        self._samples: deque[CoreSample] = deque(maxlen=_SAMPLES)

    def published(self, block: int, now: int) -> None:
        """The index adopted a block."""
        if _is_sampled(block):
            self._born[block] = now

    def used_again(self, block: int, released_at: int, now: int) -> None:
        """A sequence holds a block that was CACHED."""
        if _is_sampled(block):
            self._samples.append((USED_AGAIN, released_at, 0, now))

    def evicted(self, block: int, released_at: int, now: int) -> None:
        """A block was evicted."""
        born = self._born.pop(block, None)
        if born is not None:
            self._samples.append((EVICTED, born, released_at, now))

    def forget(self, block: int) -> None:
        """A block left the index or its number otherwise."""
        self._born.pop(block, None)

    def moved(self, moves: Mapping[int, int]) -> None:
        """Nothing is known of the birth of what lies at these numbers now."""
        for source in moves:
            self._born.pop(source, None)

    def drain(self) -> list[CoreSample]:
        """The samples since the last call."""
        samples = list(self._samples)
        self._samples.clear()
        return samples


def _is_sampled(block: int) -> bool:
    return block % _SAMPLED_EVERY == 1
