"""Holds with a deadline: pins of a prefix, loads into blocks, stores out of blocks.

Whatever is held on behalf of something that may never come back (a client that pinned, a
transfer that was lost) is held until a deadline and not longer. What comes in after that is
ignored, and counted.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvcache.admission import Need
from kvcache.core import CacheCore, HolderKind
from kvcache.errors import InvalidArgumentError
from kvcache.holders import Holders
from kvcache.room import Room

_FEW = 64  # deadlines that are not worth tidying up

_Table = Callable[[], NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class Pin:
    """A cached prefix that is not evicted before `expires_at_seconds`."""

    pin_id: int
    tokens: int  # held, whole blocks; 0: nothing of it was cached, and the pin is over already
    expires_at_seconds: float  # on the manager's clock


@dataclass(frozen=True, slots=True)
class LoadLease:
    """Blocks to be filled from outside by `expires_at_seconds`, behind a cached prefix.

    They are LOADING: nobody else sees them until `finish_load`. Who writes must stop at the
    deadline, for then the blocks are given to others.
    """

    lease_id: int
    first_block_index: int  # of `blocks` in the prefix; the blocks before it are cached
    expires_at_seconds: float  # on the manager's clock
    _table: _Table = field(repr=False, compare=False)

    @property
    def blocks(self) -> NDArray[np.int32]:
        """The blocks to fill, in order; a resize may move them, so read them when needed.

        Raises UnknownSequenceError when the lease is over.
        """
        return self._table()[self.first_block_index :]


@dataclass(frozen=True, slots=True)
class StoreLease:
    """A cached prefix that is being copied out and stays unchanged until the lease ends."""

    lease_id: int
    tokens: int  # held, whole blocks
    expires_at_seconds: float  # on the manager's clock
    _table: _Table = field(repr=False, compare=False)

    @property
    def blocks(self) -> NDArray[np.int32]:
        """The blocks of the prefix, in order; a resize may move them, so read them when needed.

        Raises UnknownSequenceError when the lease is over.
        """
        return self._table()


class Leases:
    """The holders of a core that have a deadline, by id."""

    def __init__(
        self,
        core: CacheCore,
        holders: Holders,
        room: Room,
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._holders = holders
        self._room = room
        self._clock = clock
        self._kinds: dict[int, HolderKind] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap; most ids in it have not ended
        self.expired = dict.fromkeys((HolderKind.PIN, HolderKind.LOAD, HolderKind.STORE), 0)
        self.late_completions = 0

    def pin(self, namespace: bytes, tokens: NDArray[np.int32], seconds: float) -> Pin:
        """See CacheManager, as for the next three."""
        expires_at_seconds = self._deadline(seconds)
        pin_id, held_tokens = self._hold_cached(HolderKind.PIN, namespace, tokens)
        if held_tokens:
            self._add(pin_id, HolderKind.PIN, expires_at_seconds)
        return Pin(pin_id, held_tokens, expires_at_seconds)

    def begin_store(
        self, namespace: bytes, tokens: NDArray[np.int32], seconds: float
    ) -> StoreLease | None:
        expires_at_seconds = self._deadline(seconds)
        lease_id, held_tokens = self._hold_cached(HolderKind.STORE, namespace, tokens)
        if not held_tokens:
            return None
        self._add(lease_id, HolderKind.STORE, expires_at_seconds)
        return StoreLease(lease_id, held_tokens, expires_at_seconds, self._table_of(lease_id))

    def begin_load(
        self, namespace: bytes, tokens: NDArray[np.int32], seconds: float, tenant: str
    ) -> LoadLease | None:
        expires_at_seconds = self._deadline(seconds)
        group = self._room.group_of(tenant, namespace)
        wanted = tokens.size // self._holders.block_tokens
        tokens = tokens[: wanted * self._holders.block_tokens]
        cached, evictable_hits, _ = self._core.match(namespace, tokens, wanted)
        need = Need(wanted - cached, evictable_hits, headroom_blocks=0)
        if cached == wanted or need.short_blocks(self._room.available(group)) > 0:
            return None
        lease_id = self._holders.new_id()

        def begin() -> None:
            match = self._core.match(namespace, tokens, wanted)
            kind = HolderKind.LOAD
            self._core.begin(lease_id, namespace, tokens, True, match, False, kind, group, 0)

        self._room.make(group, begin)
        self._add(lease_id, HolderKind.LOAD, expires_at_seconds)
        return LoadLease(lease_id, cached, expires_at_seconds, self._table_of(lease_id))

    def finish_load(self, lease_id: int, loaded_tokens: int) -> bool:
        if self._kinds.get(lease_id) is not HolderKind.LOAD:
            self.late_completions += 1
            return False
        lease_tokens = self._core.num_tokens(lease_id)
        if not 0 <= loaded_tokens <= lease_tokens:
            limit = f"from 0 to {lease_tokens} (the tokens of the lease)"
            raise InvalidArgumentError("loaded_tokens", loaded_tokens, limit)
        if loaded_tokens > self._core.computed_tokens(lease_id):
            self._core.commit(lease_id, loaded_tokens)
        return self.end(lease_id, HolderKind.LOAD)

    def end(self, holder_id: int, *kinds: HolderKind) -> bool:
        """Ends a holder of one of these kinds; False if there is none of this id."""
        if self._kinds.get(holder_id) not in kinds:
            return False
        del self._kinds[holder_id]
        self._forget_deadlines()
        return self._core.release(holder_id)

    def expire(self) -> int:
        """Ends what should be over by now; answers how many."""
        now_seconds, ended = self._clock(), 0
        while self._deadlines and self._deadlines[0][0] <= now_seconds:
            holder_id = heapq.heappop(self._deadlines)[1]
            kind = self._kinds.get(holder_id)
            if kind is not None and self.end(holder_id, kind):
                self.expired[kind] += 1
                ended += 1
        return ended

    # --- mechanism -----------------------------------------------------------

    def _deadline(self, seconds: float) -> float:
        if not 0 < seconds < math.inf:
            raise InvalidArgumentError("seconds", seconds, "a finite number above 0")
        return self._clock() + seconds

    def _hold_cached(
        self, kind: HolderKind, namespace: bytes, tokens: NDArray[np.int32]
    ) -> tuple[int, int]:
        max_blocks = tokens.size // self._holders.block_tokens
        return self._holders.hold_cached(kind, namespace, tokens, max_blocks)

    def _add(self, holder_id: int, kind: HolderKind, expires_at_seconds: float) -> None:
        self._kinds[holder_id] = kind
        heapq.heappush(self._deadlines, (expires_at_seconds, holder_id))

    def _forget_deadlines(self) -> None:
        """Drops those of ended holders once they are most; a pin for a day may end at once."""
        if len(self._deadlines) > max(_FEW, 2 * len(self._kinds)):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._kinds]
            heapq.heapify(self._deadlines)

    def _table_of(self, holder_id: int) -> _Table:
        return lambda: np.frombuffer(self._core.block_table(holder_id), np.int32)
