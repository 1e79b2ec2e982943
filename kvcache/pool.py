"""Who owns each block: a state machine with books that must balance.

The pool knows numbers of blocks only, neither tokens nor memory. Every operation takes whole
arrays, is all or nothing, names its actor, and raises IllegalTransitionError before it has
changed anything when one block forbids it.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque

import numpy as np
from numpy.typing import NDArray

from kvcache.errors import (
    ConservationError,
    IllegalTransitionError,
    InvalidArgumentError,
    OutOfBlocksError,
    Transition,
)

NULL_BLOCK = 0
Blocks = NDArray[np.int32]
_HISTORY_PER_BLOCK = 8  # mean number of past transitions kept for error reports
_HISTORY_FOUND = 16  # most recent transitions of one block that an error shows


class HolderKind(enum.IntEnum):
    """What a holder wants of its blocks."""

    SEQUENCE = 0  # computes with them
    PIN = 1  # keeps them from eviction
    LOAD = 2  # a transfer writes those that are not in the index yet
    STORE = 3  # a transfer reads them
    EXPECT = 4  # a waiting request would like to find them; the manager lets go first


class BlockState(enum.IntEnum):
    """FREE and CACHED blocks can be had; the others belong to somebody."""

    FREE = 0
    HELD = 1  # by `refcount` sequences
    CACHED = 2  # in the index, held by nobody, evictable
    PINNED = 3  # in the index, not evictable whether held or not
    LOADING = 4  # a transfer writes it
    STORING = 5  # a transfer reads it
    NULL = 6  # block 0: target of padding, never owned


# Plain ints for work on arrays: numpy takes several microseconds to unpack an enum member.
_FREE, _HELD, _CACHED, _PINNED, _LOADING, _STORING, _NULL = map(int, BlockState)


class BlockPool:
    """Blocks 0 .. num_blocks - 1, of which block 0 is never handed out.

    Sequences act by their id; machinery ("eviction", "flush") by its name. The lowest free
    id is allocated first, so that the tail of the pool empties and can be given back. A binary
    heap keeps the free ids: O(log n) in C per block, with no worst case that depends on
    how the holes lie, which a bitmap with a search hint has.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise InvalidArgumentError(
                "num_blocks", num_blocks, "at least 2 (the null block and one more)"
            )
        self.num_blocks = num_blocks
        self._free = list(range(1, num_blocks))  # ascending, hence already a heap
        self._state = np.full(num_blocks, _FREE, np.uint8)
        self._state[NULL_BLOCK] = _NULL
        self._refcount = np.zeros(num_blocks, np.int32)
        # Sum of (id + 1) over the holders: with one holder it is that holder's name, so that
        # a release by anyone else is caught at once; with several, by the last release at
        # the latest. A set per block would cost Python time for every block.
        self._holder_sum = np.zeros(num_blocks, np.int64)
        self._indexed = np.zeros(num_blocks, np.bool_)
        self._count = [0] * len(BlockState)
        self._count[_FREE] = num_blocks - 1
        self._count[_NULL] = 1
        self._shared = 0
        self._serial = 0
        self._history: deque[tuple[int, str, int | str, Blocks]] = deque()
        self._history_blocks = 0

    # --- what is where -------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def count(self, state: BlockState) -> int:
        """Blocks in a state, O(1)."""
        return self._count[state]

    @property
    def shared_blocks(self) -> int:
        """Blocks with two or more holders."""
        return self._shared

    def state(self, block: int) -> BlockState:
        """State of one block."""
        return BlockState(int(self._state[block]))

    def refcount(self, block: int) -> int:
        """Number of holders of one block."""
        return int(self._refcount[block])

    def is_indexed(self, block: int) -> bool:
        """Whether the prefix index knows the block."""
        return bool(self._indexed[block])

    def exclusive_blocks(self, blocks: Blocks) -> int:
        """How many of `blocks` have a single holder."""
        return int(np.count_nonzero(self._refcount[blocks] == 1))

    def history(self, block: int) -> tuple[Transition, ...]:
        """What happened to a block, oldest first, as far as the bounded record reaches."""
        found = [
            Transition(serial, operation, _name(actor))
            for serial, operation, actor, blocks in self._history
            if block in blocks
        ]
        return tuple(found[-_HISTORY_FOUND:])

    # --- holding -------------------------------------------------------------

    def allocate(self, count: int, holder: int) -> Blocks:
        """FREE -> HELD: the `count` lowest free blocks, now held by `holder`.

        Raises OutOfBlocksError when fewer are free.
        """
        blocks = self._take_free(count, _HELD)
        self._refcount[blocks] = 1
        self._holder_sum[blocks] = holder + 1
        self._record("allocate", holder, blocks)
        return blocks

    def hold(self, blocks: Blocks, holder: int) -> None:
        """One more holder: HELD and PINNED blocks stay what they are, CACHED -> HELD."""
        at, states = self._checked("hold", holder, blocks, _HELD, _CACHED, _PINNED)
        references = self._refcount[at] + 1
        self._refcount[at] = references
        self._holder_sum[at] += holder + 1
        self._shared += int(np.count_nonzero(references == 2))
        if _CACHED in states:
            self._move(at[_where(states, _CACHED)], _CACHED, _HELD)
        self._record("hold", holder, blocks)

    def release(self, blocks: Blocks, holder: int) -> None:
        """One holder less. The last one: HELD -> CACHED if indexed, else FREE."""
        at, states = self._checked("release", holder, blocks, _HELD, _PINNED)
        references = self._refcount[at] - 1
        sums = self._holder_sum[at] - (holder + 1)
        # With no holder left, nothing may be left of their sum.
        self._refuse("release", holder, blocks, references < 0, "is held by nobody")
        foreign = (references == 0) & (sums != 0)
        self._refuse("release", holder, blocks, foreign, "is held by another")
        self._refcount[at] = references
        self._holder_sum[at] = sums
        self._shared -= int(np.count_nonzero(references == 1))
        last = references == 0
        if _PINNED in states:
            last &= _where(states, _HELD)
        left = at[last]
        indexed = self._indexed[left]
        self._move(left[indexed], _HELD, _CACHED)
        self._put_free(left[~indexed], _HELD)
        self._record("release", holder, blocks)

    # --- the prefix index ----------------------------------------------------

    def publish(self, blocks: Blocks, actor: int | str) -> None:
        """The index adopts HELD blocks: their last release makes them CACHED, not FREE."""
        at, _ = self._checked("publish", actor, blocks, _HELD)
        self._refuse("publish", actor, blocks, self._indexed[at], "is in the index already")
        self._indexed[at] = True
        self._record("publish", actor, blocks)

    def unpublish(self, blocks: Blocks, actor: int | str) -> None:
        """The index lets go: CACHED -> FREE; HELD blocks stay with their holders."""
        at, states = self._checked("unpublish", actor, blocks, _HELD, _CACHED)
        self._refuse("unpublish", actor, blocks, ~self._indexed[at], "is not in the index")
        self._indexed[at] = False
        self._put_free(at[_where(states, _CACHED)] if _HELD in states else at, _CACHED)
        self._record("unpublish", actor, blocks)

    def pin(self, blocks: Blocks, actor: int | str) -> None:
        """Indexed HELD or CACHED -> PINNED."""
        at, states = self._checked("pin", actor, blocks, _HELD, _CACHED)
        self._refuse("pin", actor, blocks, ~self._indexed[at], "is not in the index")
        for state in (_HELD, _CACHED):
            self._move(at[_where(states, state)], state, _PINNED)
        self._record("pin", actor, blocks)

    def unpin(self, blocks: Blocks, actor: int | str) -> None:
        """PINNED -> HELD where somebody holds the block, else CACHED."""
        at, _ = self._checked("unpin", actor, blocks, _PINNED)
        held = self._refcount[at] > 0
        self._move(at[held], _PINNED, _HELD)
        self._move(at[~held], _PINNED, _CACHED)
        self._record("unpin", actor, blocks)

    # --- transfers -----------------------------------------------------------

    def begin_load(self, count: int, actor: str) -> Blocks:
        """FREE -> LOADING: blocks that a transfer is about to fill."""
        blocks = self._take_free(count, _LOADING)
        self._record("begin_load", actor, blocks)
        return blocks

    def finish_load(self, blocks: Blocks, holder: int) -> None:
        """LOADING -> HELD: the contents are there, `holder` waited for them."""
        at, _ = self._checked("finish_load", holder, blocks, _LOADING)
        self._move(at, _LOADING, _HELD)
        self._refcount[at] = 1
        self._holder_sum[at] = holder + 1
        self._record("finish_load", holder, blocks)

    def cancel_load(self, blocks: Blocks, actor: str) -> None:
        """LOADING -> FREE. The caller knows that the transfer writes no more."""
        at, _ = self._checked("cancel_load", actor, blocks, _LOADING)
        self._put_free(at, _LOADING)
        self._record("cancel_load", actor, blocks)

    def begin_store(self, blocks: Blocks, actor: str) -> None:
        """CACHED -> STORING: a transfer reads the blocks, which cannot be had meanwhile."""
        at, _ = self._checked("begin_store", actor, blocks, _CACHED)
        self._move(at, _CACHED, _STORING)
        self._record("begin_store", actor, blocks)

    def finish_store(self, blocks: Blocks, actor: str) -> None:
        """STORING -> CACHED: the copy is made, or was given up."""
        at, _ = self._checked("finish_store", actor, blocks, _STORING)
        self._move(at, _STORING, _CACHED)
        self._record("finish_store", actor, blocks)

    # --- books ---------------------------------------------------------------

    def check(self) -> None:
        """Conservation, O(1): free + cached + held + pinned + in flight = committed - 1.

        "Free" is the length of the free heap, which no counter touches: a block that is put
        there twice, or never, breaks the identity.
        """
        owned = sum(self._count[_HELD:_NULL])
        if len(self._free) + owned != self.num_blocks - 1 or min(self._count) < 0:
            counts = {state.name.lower(): self._count[state] for state in BlockState}
            raise ConservationError(
                f"{len(self._free)} blocks in the free heap and {owned} owned make "
                f"{len(self._free) + owned}, not {self.num_blocks - 1}; counters: {counts}"
            )

    def audit(self) -> None:
        """Full consistency of states, counters, heap and reference counts, O(num_blocks)."""
        self.check()
        counted = np.bincount(self._state, minlength=len(BlockState)).tolist()
        if counted != self._count:
            raise ConservationError(f"states count {counted}, the counters say {self._count}")
        if sorted(self._free) != np.flatnonzero(self._state == _FREE).tolist():
            raise ConservationError("the free heap and the FREE states differ")
        held = self._state == _HELD
        holdable = held | (self._state == _PINNED)
        faults = {
            "HELD blocks without a holder": held & (self._refcount < 1),
            "holders of a block that is not held": ~holdable & (self._refcount != 0),
            "a negative refcount": self._refcount < 0,
            "a holder sum without holders": (self._refcount == 0) & (self._holder_sum != 0),
            "CACHED blocks outside the index": (self._state == _CACHED) & ~self._indexed,
            "FREE blocks in the index": (self._state == _FREE) & self._indexed,
        }
        for fault, mask in faults.items():
            if mask.any():
                raise ConservationError(f"{fault}: {np.flatnonzero(mask)[:8].tolist()}")
        if int(np.count_nonzero(self._refcount >= 2)) != self._shared:
            raise ConservationError(f"the shared counter says {self._shared}")

    # --- mechanism -----------------------------------------------------------

    def _take_free(self, count: int, target: int) -> Blocks:
        if count < 0:
            raise InvalidArgumentError("count", count, "at least 0")
        if count > len(self._free):
            raise OutOfBlocksError(count, len(self._free))
        free = self._free
        blocks = np.array([heapq.heappop(free) for _ in range(count)], np.int32)
        self._move(blocks, _FREE, target)
        return blocks

    def _put_free(self, blocks: NDArray[np.integer], source: int) -> None:
        self._move(blocks, source, _FREE)
        for block in blocks.tolist():
            heapq.heappush(self._free, block)

    def _move(self, blocks: NDArray[np.integer], source: int, target: int) -> None:
        if blocks.size:
            self._state[blocks] = target
            self._count[source] -= blocks.size
            self._count[target] += blocks.size

    def _checked(
        self, operation: str, actor: int | str, blocks: Blocks, *allowed: int
    ) -> tuple[NDArray[np.intp], bytes]:
        """Raises unless `blocks` are distinct and all in `allowed` states.

        Answers them as indices, which numpy takes fastest, and their states, one byte each.
        """
        # As unsigned numbers negative ids are too large as well.
        at = blocks.view(np.uint32).astype(np.intp)
        try:
            states = self._state[at].tobytes()
        except IndexError:
            raise InvalidArgumentError(
                "blocks", blocks.tolist(), f"block ids from 1 to {self.num_blocks - 1}"
            ) from None
        if states.translate(None, delete=bytes(allowed)):
            legal = np.isin(self._state[at], allowed)
            self._refuse(operation, actor, blocks, ~legal, "its state forbids that")
        if at.size > 1 and len(set(blocks.tolist())) != at.size:
            _, first = np.unique(blocks, return_index=True)
            repeated = np.ones(blocks.size, np.bool_)
            repeated[first] = False
            self._refuse(operation, actor, blocks, repeated, "is named twice")
        return at, states

    def _refuse(
        self,
        operation: str,
        actor: int | str,
        blocks: Blocks,
        illegal: NDArray[np.bool_],
        reason: str,
    ) -> None:
        """Raises for the first illegal block, if there is one."""
        if np.count_nonzero(illegal) == 0:
            return
        block = int(blocks[illegal.argmax()])
        sole = int(self._refcount[block]) == 1
        raise IllegalTransitionError(
            block=block,
            state=self.state(block).name,
            operation=operation,
            actor=_name(actor),
            reason=reason,
            holder=_name(int(self._holder_sum[block]) - 1) if sole else None,
            history=self.history(block),
        )

    def _record(self, operation: str, actor: int | str, blocks: Blocks) -> None:
        self._serial += 1
        # A copy: callers pass views of tables that they rewrite later.
        self._history.append((self._serial, operation, actor, blocks.copy()))
        self._history_blocks += blocks.size
        limit = _HISTORY_PER_BLOCK * self.num_blocks
        while self._history_blocks > limit or len(self._history) > limit:
            self._history_blocks -= self._history.popleft()[3].size


def _where(states: bytes, state: int) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = np.frombuffer(states, np.uint8) == state
    return mask


def _name(actor: int | str) -> str:
    return actor if isinstance(actor, str) else f"sequence {actor}"
