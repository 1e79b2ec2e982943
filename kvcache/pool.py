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


class BlockState(enum.IntEnum):
    """FREE and CACHED blocks can be had; the others belong to somebody."""

    FREE = 0
    HELD = 1  # by `refcount` sequences
    CACHED = 2  # in the index, held by nobody, evictable
    PINNED = 3  # in the index, not evictable whether held or not
    LOADING = 4  # a transfer writes it
    STORING = 5  # a transfer reads it
    NULL = 6  # block 0: target of padding, never owned


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
        self._state = np.full(num_blocks, BlockState.FREE, np.uint8)
        self._state[NULL_BLOCK] = BlockState.NULL
        self._refcount = np.zeros(num_blocks, np.int32)
        # Sum of (id + 1) over the holders: with one holder it is that holder's name, so that
        # a release by anyone else is caught at once; with several, by the last release at
        # the latest. A set per block would cost Python time for every block.
        self._holder_sum = np.zeros(num_blocks, np.int64)
        self._indexed = np.zeros(num_blocks, np.bool_)
        self._count = [0] * len(BlockState)
        self._count[BlockState.FREE] = num_blocks - 1
        self._count[BlockState.NULL] = 1
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
        blocks = self._take_free(count)
        self._state[blocks] = BlockState.HELD
        self._refcount[blocks] = 1
        self._holder_sum[blocks] = holder + 1
        self._count[BlockState.HELD] += count
        self._record("allocate", holder, blocks)
        return blocks

    def hold(self, blocks: Blocks, holder: int) -> None:
        """One more holder: HELD and PINNED blocks stay what they are, CACHED -> HELD."""
        states = self._checked(
            "hold", holder, blocks, BlockState.HELD, BlockState.CACHED, BlockState.PINNED
        )
        cached = int(np.count_nonzero(states == BlockState.CACHED))
        if cached:
            self._state[blocks[states == BlockState.CACHED]] = BlockState.HELD
            self._count[BlockState.CACHED] -= cached
            self._count[BlockState.HELD] += cached
        self._refcount[blocks] += 1
        self._holder_sum[blocks] += holder + 1
        self._shared += int(np.count_nonzero(self._refcount[blocks] == 2))
        self._record("hold", holder, blocks)

    def release(self, blocks: Blocks, holder: int) -> None:
        """One holder less. The last one: HELD -> CACHED if indexed, else FREE."""
        states = self._checked("release", holder, blocks, BlockState.HELD, BlockState.PINNED)
        refcounts = self._refcount[blocks]
        foreign = (refcounts == 1) & (self._holder_sum[blocks] != holder + 1)
        self._refuse("release", holder, blocks, foreign, "is held by another")
        self._refuse("release", holder, blocks, refcounts == 0, "is held by nobody")
        self._refcount[blocks] -= 1
        self._holder_sum[blocks] -= holder + 1
        self._shared -= int(np.count_nonzero(refcounts == 2))
        last = blocks[(refcounts == 1) & (states == BlockState.HELD)]
        indexed = self._indexed[last]
        self._move(last[indexed], BlockState.HELD, BlockState.CACHED)
        self._put_free(last[~indexed], BlockState.HELD)
        self._record("release", holder, blocks)

    # --- the prefix index ----------------------------------------------------

    def publish(self, blocks: Blocks, actor: int | str) -> None:
        """The index adopts HELD blocks: their last release makes them CACHED, not FREE."""
        self._checked("publish", actor, blocks, BlockState.HELD)
        self._refuse("publish", actor, blocks, self._indexed[blocks], "is in the index already")
        self._indexed[blocks] = True
        self._record("publish", actor, blocks)

    def unpublish(self, blocks: Blocks, actor: int | str) -> None:
        """The index lets go: CACHED -> FREE; HELD blocks stay with their holders."""
        states = self._checked("unpublish", actor, blocks, BlockState.HELD, BlockState.CACHED)
        self._refuse("unpublish", actor, blocks, ~self._indexed[blocks], "is not in the index")
        self._indexed[blocks] = False
        self._put_free(blocks[states == BlockState.CACHED], BlockState.CACHED)
        self._record("unpublish", actor, blocks)

    def pin(self, blocks: Blocks, actor: int | str) -> None:
        """Indexed HELD or CACHED -> PINNED."""
        states = self._checked("pin", actor, blocks, BlockState.HELD, BlockState.CACHED)
        self._refuse("pin", actor, blocks, ~self._indexed[blocks], "is not in the index")
        for state in (BlockState.HELD, BlockState.CACHED):
            self._move(blocks[states == state], state, BlockState.PINNED)
        self._record("pin", actor, blocks)

    def unpin(self, blocks: Blocks, actor: int | str) -> None:
        """PINNED -> HELD where somebody holds the block, else CACHED."""
        self._checked("unpin", actor, blocks, BlockState.PINNED)
        held = self._refcount[blocks] > 0
        self._move(blocks[held], BlockState.PINNED, BlockState.HELD)
        self._move(blocks[~held], BlockState.PINNED, BlockState.CACHED)
        self._record("unpin", actor, blocks)

    # --- transfers -----------------------------------------------------------

    def begin_load(self, count: int, actor: str) -> Blocks:
        """FREE -> LOADING: blocks that a transfer is about to fill."""
        blocks = self._take_free(count)
        self._state[blocks] = BlockState.LOADING
        self._count[BlockState.LOADING] += count
        self._record("begin_load", actor, blocks)
        return blocks

    def finish_load(self, blocks: Blocks, holder: int) -> None:
        """LOADING -> HELD: the contents are there, `holder` waited for them."""
        self._checked("finish_load", holder, blocks, BlockState.LOADING)
        self._move(blocks, BlockState.LOADING, BlockState.HELD)
        self._refcount[blocks] = 1
        self._holder_sum[blocks] = holder + 1
        self._record("finish_load", holder, blocks)

    def cancel_load(self, blocks: Blocks, actor: str) -> None:
        """LOADING -> FREE. The caller knows that the transfer writes no more."""
        self._checked("cancel_load", actor, blocks, BlockState.LOADING)
        self._put_free(blocks, BlockState.LOADING)
        self._record("cancel_load", actor, blocks)

    def begin_store(self, blocks: Blocks, actor: str) -> None:
        """CACHED -> STORING: a transfer reads the blocks, which cannot be had meanwhile."""
        self._checked("begin_store", actor, blocks, BlockState.CACHED)
        self._move(blocks, BlockState.CACHED, BlockState.STORING)
        self._record("begin_store", actor, blocks)

    def finish_store(self, blocks: Blocks, actor: str) -> None:
        """STORING -> CACHED: the copy is made, or was given up."""
        self._checked("finish_store", actor, blocks, BlockState.STORING)
        self._move(blocks, BlockState.STORING, BlockState.CACHED)
        self._record("finish_store", actor, blocks)

    # --- books ---------------------------------------------------------------

    def check(self) -> None:
        """Conservation, O(1): free + cached + held + pinned + in flight = committed - 1.

        "Free" is the length of the free heap, which no counter touches: a block that is put
        there twice, or never, breaks the identity.
        """
        owned = sum(self._count[BlockState.HELD : BlockState.NULL])
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
        if sorted(self._free) != np.flatnonzero(self._state == BlockState.FREE).tolist():
            raise ConservationError("the free heap and the FREE states differ")
        held = self._state == BlockState.HELD
        holdable = held | (self._state == BlockState.PINNED)
        faults = {
            "HELD blocks without a holder": held & (self._refcount < 1),
            "holders of a block that is not held": ~holdable & (self._refcount != 0),
            "a negative refcount": self._refcount < 0,
            "a holder sum without holders": (self._refcount == 0) & (self._holder_sum != 0),
            "CACHED blocks outside the index": (self._state == BlockState.CACHED) & ~self._indexed,
            "FREE blocks in the index": (self._state == BlockState.FREE) & self._indexed,
        }
        for fault, mask in faults.items():
            if mask.any():
                raise ConservationError(f"{fault}: {np.flatnonzero(mask)[:8].tolist()}")
        if int(np.count_nonzero(self._refcount >= 2)) != self._shared:
            raise ConservationError(f"the shared counter says {self._shared}")

    # --- mechanism -----------------------------------------------------------

    def _take_free(self, count: int) -> Blocks:
        if count < 0:
            raise InvalidArgumentError("count", count, "at least 0")
        if count > len(self._free):
            raise OutOfBlocksError(count, len(self._free))
        free = self._free
        blocks = np.array([heapq.heappop(free) for _ in range(count)], np.int32)
        self._count[BlockState.FREE] -= count
        return blocks

    def _put_free(self, blocks: Blocks, source: BlockState) -> None:
        self._move(blocks, source, BlockState.FREE)
        for block in blocks.tolist():
            heapq.heappush(self._free, block)

    def _move(self, blocks: Blocks, source: BlockState, target: BlockState) -> None:
        self._state[blocks] = target
        self._count[source] -= blocks.size
        self._count[target] += blocks.size

    def _checked(
        self, operation: str, actor: int | str, blocks: Blocks, *allowed: BlockState
    ) -> NDArray[np.uint8]:
        """The states of `blocks`; raises unless they are distinct and all in `allowed`."""
        if blocks.size == 0:
            return np.empty(0, np.uint8)
        if int(blocks.min()) < 0 or int(blocks.max()) >= self.num_blocks:
            raise InvalidArgumentError(
                "blocks", blocks.tolist(), f"block ids from 1 to {self.num_blocks - 1}"
            )
        states = self._state[blocks]
        legal = states == allowed[0]
        for state in allowed[1:]:
            legal |= states == state
        self._refuse(operation, actor, blocks, ~legal, "its state forbids that")
        if blocks.size > 1 and len(set(blocks.tolist())) != blocks.size:
            _, first = np.unique(blocks, return_index=True)
            repeated = np.ones(blocks.size, np.bool_)
            repeated[first] = False
            self._refuse(operation, actor, blocks, repeated, "is named twice")
        return states

    def _refuse(
        self,
        operation: str,
        actor: int | str,
        blocks: Blocks,
        illegal: NDArray[np.bool_],
        reason: str,
    ) -> None:
        """Raises for the first illegal block, if there is one."""
        if not illegal.any():
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


def _name(actor: int | str) -> str:
    return actor if isinstance(actor, str) else f"sequence {actor}"
