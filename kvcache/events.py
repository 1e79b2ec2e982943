"""What happens to the prefix index, as a numbered stream that another process can follow.

A router that knows which replica has which prefix sends a request where its prefix is. It
takes a snapshot, then applies every event behind it to an `IndexReplica`; the numbers tell it
when it has missed one, and then it takes a new snapshot. Events are one to one with changes of
the index: what is stored was not there, what is removed was, and nothing is removed before
what continues it. So the replica is the index, not a guess at it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvcache.errors import InvalidArgumentError, KVCacheError

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that continue each other, the first of them `parent`, are in the index now."""

    number: int
    namespace: bytes
    parent: int | None  # block; None: the first one begins a prefix
    blocks: tuple[int, ...]
    token_ids: tuple[int, ...]  # of all blocks, in order


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks were evicted, each after all that continued it."""

    number: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks of a namespace were forgotten (None: of all namespaces)."""

    number: int
    namespace: bytes | None


@dataclass(frozen=True, slots=True)
class Moved:
    """Blocks have new ids, (old, new) each; also such as are not in the index."""

    number: int
    moves: tuple[tuple[int, int], ...]


CacheEvent = Stored | Removed | Cleared | Moved


class IndexListener(Protocol):
    """Is told of every change of the index, at once and in order. Must not change the manager.

    While `removed` runs the contents of the blocks are still what they were; afterwards they
    are overwritten. `moved` comes after contents were copied. What a listener raises comes out
    of the operation, which has been done all the same, when everybody has been told.
    """

    def stored(
        self,
        namespace: bytes,
        parent: int | None,
        blocks: Sequence[int],
        token_ids: Sequence[int],
    ) -> None:
        """Blocks that continue each other, the first of them `parent`, are in the index now."""

    def removed(self, blocks: Sequence[int]) -> None:
        """Blocks were evicted, each after all that continued it."""

    def cleared(self, namespace: bytes | None) -> None:
        """All blocks of a namespace were forgotten (None: of all namespaces)."""

    def moved(self, moves: Sequence[tuple[int, int]]) -> None:
        """Blocks have new ids, (old, new) each, those that are not in the index included."""


@dataclass(frozen=True, slots=True)
class IndexSnapshot:
    """The index after event `number`; `runs` have parents before what continues them."""

    number: int
    runs: tuple[Stored, ...]


class EventsLostError(KVCacheError):
    """Events that are wanted are no longer kept: take a snapshot."""

    def __init__(self, after: int, first_kept: int) -> None:
        super().__init__(
            f"events from {after + 1} are wanted, the first kept is {first_kept}: take a snapshot"
        )
        self.after = after
        self.first_kept = first_kept


class ReplicaError(KVCacheError):
    """An event does not follow from what the replica knows; a snapshot repairs that."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"event {number}: {reason}")
        self.number = number
        self.reason = reason


class EventLog:
    """The last `capacity` events. Numbers count from 1 and have no holes.

    An `IndexListener`.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        if capacity < 1:
            raise InvalidArgumentError("capacity", capacity, "at least 1")
        self._events: deque[CacheEvent] = deque(maxlen=capacity)
        self.last_number = 0

    def stored(
        self,
        namespace: bytes,
        parent: int | None,
        blocks: Sequence[int],
        token_ids: Sequence[int],
    ) -> None:
        ids = tuple(blocks), tuple(token_ids)
        self._events.append(Stored(self._next(), namespace, parent, *ids))

    def removed(self, blocks: Sequence[int]) -> None:
        self._events.append(Removed(self._next(), tuple(blocks)))

    def cleared(self, namespace: bytes | None) -> None:
        self._events.append(Cleared(self._next(), namespace))

    def moved(self, moves: Sequence[tuple[int, int]]) -> None:
        self._events.append(Moved(self._next(), tuple(moves)))

    def since(self, after: int) -> tuple[CacheEvent, ...]:
        """The events behind number `after`, oldest first.

        Raises EventsLostError when some of them are no longer kept.
        """
        if not 0 <= after <= self.last_number:
            limit = f"from 0 to {self.last_number} (the last event)"
            raise InvalidArgumentError("after", after, limit)
        missing = self.last_number - after
        if missing > len(self._events):
            raise EventsLostError(after, self.last_number - len(self._events) + 1)
        return tuple(self._events[place - missing] for place in range(missing))

    def _next(self) -> int:
        self.last_number += 1
        return self.last_number


# Namespace, parent, blocks, and token_ids, as in Stored.
Run = tuple[bytes, int | None, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ReplicaBlock:
    """What a replica knows of a block."""

    namespace: bytes
    parent: int | None
    token_ids: tuple[int, ...]


class IndexReplica:
    """Follows an index from a snapshot on, by its events."""

    def __init__(self, snapshot: IndexSnapshot, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks: dict[int, ReplicaBlock] = {}
        self._at: dict[ReplicaBlock, int] = {}
        self._continuations: Counter[int] = Counter()
        self.number = snapshot.number
        for run in snapshot.runs:
            self._store(run)

    @property
    def blocks(self) -> dict[int, ReplicaBlock]:
        """All blocks, a copy."""
        return dict(self._blocks)

    def apply(self, event: CacheEvent) -> None:
        """Follows the next event.

        Raises ReplicaError when it is not the next one, or contradicts what is known; the
        replica must not be used any more then.
        """
        if event.number != self.number + 1:
            raise ReplicaError(event.number, f"the next one is {self.number + 1}")
        match event:
            case Stored():
                self._store(event)
            case Removed():
                for block in event.blocks:
                    self._remove(block, event.number)
            case Cleared():
                self._clear(event.namespace)
            case Moved():
                self._move(dict(event.moves), event.number)
        self.number = event.number

    def match(self, namespace: bytes, token_ids: Tokens) -> list[int]:
        """The blocks of the longest known prefix."""
        found: list[int] = []
        size = self._block_tokens
        for start in range(0, token_ids.size - size + 1, size):
            tokens = tuple(token_ids[start : start + size].tolist())
            parent = found[-1] if found else None
            block = self._at.get(ReplicaBlock(namespace, parent, tokens))
            if block is None:
                break
            found.append(block)
        return found

    def _store(self, run: Stored) -> None:
        parent = run.parent
        if parent is not None and parent not in self._blocks:
            raise ReplicaError(run.number, f"block {parent} is continued but not known")
        for place, block in enumerate(run.blocks):
            start = place * self._block_tokens
            tokens = run.token_ids[start : start + self._block_tokens]
            entry = ReplicaBlock(run.namespace, parent, tokens)
            if block in self._blocks or entry in self._at:
                raise ReplicaError(run.number, f"block {block} or its tokens are known already")
            self._blocks[block] = entry
            self._at[entry] = block
            if parent is not None:
                self._continuations[parent] += 1
            parent = block

    def _remove(self, block: int, number: int) -> None:
        if block not in self._blocks or self._continuations[block]:
            raise ReplicaError(number, f"block {block} is not known, or others continue it")
        entry = self._blocks.pop(block)
        del self._at[entry], self._continuations[block]
        if entry.parent is not None:
            self._continuations[entry.parent] -= 1

    def _clear(self, namespace: bytes | None) -> None:
        for block, entry in list(self._blocks.items()):
            if namespace is None or entry.namespace == namespace:
                del self._blocks[block], self._at[entry]
                self._continuations.pop(block, None)

    def _move(self, moves: dict[int, int], number: int) -> None:
        if taken := set(moves.values()) & self._blocks.keys():
            raise ReplicaError(number, f"block {min(taken)} is in the place of a moved one")
        if not moves.keys() & self._blocks.keys():
            return

        def place(block: int) -> int:
            return moves.get(block, block)

        self._blocks = {
            place(block): entry
            if entry.parent is None
            else ReplicaBlock(entry.namespace, place(entry.parent), entry.token_ids)
            for block, entry in self._blocks.items()
        }
        self._at = {entry: block for block, entry in self._blocks.items()}
        counts = self._continuations.items()
        self._continuations = Counter({place(block): count for block, count in counts})
