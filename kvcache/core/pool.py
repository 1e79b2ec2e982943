"""Who owns each block: a state machine with books that must balance.

The pool knows numbers of blocks only, neither tokens nor memory. Every operation names its
actor, and raises IllegalTransitionError before it has changed anything when the block forbids
it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from kvcache.core.states import BlockState, HolderKind, state_of
from kvcache.errors import (
    ConservationError,
    IllegalTransitionError,
    InvalidArgumentError,
    OutOfBlocksError,
    Transition,
)

NULL_BLOCK = 0
_HISTORY = 1 << 15  # transitions of all blocks that are kept for error reports
_HISTORY_FOUND = 16  # most recent transitions of one block that an error shows
_NOBODY: Mapping[int, HolderKind] = MappingProxyType({})
_NOTHING = (0,) * len(BlockState)


class BlockPool:
    """Blocks 0 .. num_blocks - 1, of which block 0 is never handed out.

    Holders act by their id; machinery ("eviction", "flush") by its name. The lowest free id is
    allocated first, so that the tail of the pool empties and can be given back. A binary heap
    keeps the free ids: O(log n) in C per block, with no worst case that depends on how the
    holes lie, which a bitmap with a search hint has.

    A block that is not FREE is charged to the group that it was allocated for.
    """

    def __init__(self, num_blocks: int) -> None:
        require_size(num_blocks)
        self.num_blocks = num_blocks
        self._free = list(range(1, num_blocks))  # ascending, hence already a heap
        self._state = [BlockState.FREE] * num_blocks
        self._state[NULL_BLOCK] = BlockState.NULL
        self._group = [0] * num_blocks
        self._published = [False] * num_blocks
        self._holders: dict[int, dict[int, HolderKind]] = {}  # of the blocks that have any
        self._count = [0] * len(BlockState)
        self._count[BlockState.FREE] = num_blocks - 1
        self._count[BlockState.NULL] = 1
        self._charged: dict[int, list[int]] = {}  # as _count, by group; FREE ones are not counted
        self._shared = 0
        self._serial = 0
        self._history: deque[tuple[int, str, int | str, int]] = deque(maxlen=_HISTORY)

    # --- what is where -------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    @property
    def shared_blocks(self) -> int:
        """Blocks with two or more holders."""
        return self._shared

    @property
    def groups(self) -> Iterable[int]:
        """The groups that blocks were ever charged to."""
        return self._charged.keys()

    def count(self, state: BlockState) -> int:
        """Blocks in a state, O(1)."""
        return self._count[state]

    def charged(self, group: int) -> Sequence[int]:
        """The blocks that are charged to a group, by state."""
        return self._charged.get(group, _NOTHING)

    def state(self, block: int) -> BlockState:
        """State of one block."""
        return self._state[block]

    def group(self, block: int) -> int:
        """The group that a block is charged to, or was the last time."""
        return self._group[block]

    def holders(self, block: int) -> Mapping[int, HolderKind]:
        """The holders of one block."""
        return self._holders.get(block, _NOBODY)

    def is_published(self, block: int) -> bool:
        """Whether the prefix index has the block."""
        return self._published[block]

    def highest_used(self) -> int:
        """The highest block that is not FREE; the null block if there is none."""
        block = self.num_blocks - 1
        while self._state[block] is BlockState.FREE:
            block -= 1
        return block

    def history(self, block: int) -> tuple[Transition, ...]:
        """What happened to a block, oldest first, as far as the bounded record reaches."""
        found = [
            Transition(serial, operation, _name(actor))
            for serial, operation, actor, changed in self._history
            if changed == block
        ]
        return tuple(found[-_HISTORY_FOUND:])

    # --- holding -------------------------------------------------------------

    def allocate(self, holder: int, kind: HolderKind = HolderKind.SEQUENCE, group: int = 0) -> int:
        """Gives the lowest FREE block to a holder, at the charge of a group.

        Raises OutOfBlocksError when none is free.
        """
        if not self._free:
            raise OutOfBlocksError(1, 0)
        block = heapq.heappop(self._free)
        self._holders[block] = {holder: kind}
        self._group[block] = group
        self._update(block)
        self._record("allocate", holder, block)
        return block

    def hold(self, block: int, holder: int, kind: HolderKind = HolderKind.SEQUENCE) -> BlockState:
        """One holder more, of any block but a FREE or LOADING one. Answers the state before."""
        before = self._require(block, "hold", holder)
        if before in (BlockState.FREE, BlockState.LOADING):
            self._refuse("hold", holder, block, "its state forbids that")
        holders = self._holders.setdefault(block, {})
        if holder in holders:
            self._refuse("hold", holder, block, "is held by it already")
        holders[holder] = kind
        self._shared += len(holders) == 2
        self._update(block)
        self._record("hold", holder, block)
        return before

    def release(self, block: int, holder: int) -> BlockState:
        """One holder less. Answers the state after: without holders CACHED, or else FREE."""
        self._require(block, "release", holder)
        holders = self._holders.get(block)
        if holders is None:
            self._refuse("release", holder, block, "its state forbids that")
        if holder not in holders:
            self._refuse("release", holder, block, "is held by another")
        del holders[holder]
        self._shared -= len(holders) == 1
        if not holders:
            del self._holders[block]
        after = self._update(block)
        self._record("release", holder, block)
        return after

    # --- the prefix index ----------------------------------------------------

    def publish(self, block: int, actor: int | str) -> None:
        """The index adopts a block that is held: its last release makes it CACHED, not FREE."""
        self._require(block, "publish", actor)
        if block not in self._holders:
            self._refuse("publish", actor, block, "its state forbids that")
        if self._published[block]:
            self._refuse("publish", actor, block, "is in the index already")
        self._published[block] = True
        self._update(block)
        self._record("publish", actor, block)

    def unpublish(self, block: int, actor: int | str) -> None:
        """The index lets go: CACHED becomes FREE; others stay with their holders."""
        self._require(block, "unpublish", actor)
        if not self._published[block]:
            self._refuse("unpublish", actor, block, "is not in the index")
        self._published[block] = False
        self._update(block)
        self._record("unpublish", actor, block)

    # --- size ----------------------------------------------------------------

    def resize(self, num_blocks: int) -> list[tuple[int, int]]:
        """Grows by FREE blocks, or shrinks after moving what lies behind the new end.

        In ascending order, each to the lowest FREE block. Answers the moves, (source,
        destination). Raises OutOfBlocksError when the blocks that are not FREE do not fit.
        """
        require_size(num_blocks)
        used = self.num_blocks - 1 - len(self._free)
        if used > num_blocks - 1:
            raise OutOfBlocksError(used, num_blocks - 1)
        added = max(0, num_blocks - self.num_blocks)
        self._free.extend(range(self.num_blocks, num_blocks))  # the highest: still a heap
        self._state.extend([BlockState.FREE] * added)
        self._group.extend([0] * added)
        self._published.extend([False] * added)
        moves = [
            (source, self._move(source))
            for source in range(num_blocks, self.num_blocks)
            if self._state[source] is not BlockState.FREE
        ]
        del (self._state[num_blocks:], self._group[num_blocks:], self._published[num_blocks:])
        self._free = sorted(block for block in self._free if block < num_blocks)
        self._count[BlockState.FREE] += num_blocks - self.num_blocks
        self.num_blocks = num_blocks
        return moves

    # --- books ---------------------------------------------------------------

    def check(self) -> None:
        """Conservation, O(1): the states of all blocks but the null block make num_blocks - 1.

        FREE blocks are those in the free heap, which no counter touches: a block that is put
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
        """Full consistency of states, counters, heap and holders, O(num_blocks)."""
        self.check()
        counted: Counter[BlockState] = Counter()
        charged: Counter[tuple[int, BlockState]] = Counter()
        for block, state in enumerate(self._state):
            kinds = self.holders(block).values()
            expected = state_of(kinds, is_published=self._published[block])
            if state is not (BlockState.NULL if block == NULL_BLOCK else expected):
                raise ConservationError(f"block {block} is {state.name} against its holders")
            counted[state] += 1
            if state not in (BlockState.FREE, BlockState.NULL):
                charged[self._group[block], state] += 1
        free = [block for block, state in enumerate(self._state) if state is BlockState.FREE]
        if sorted(self._free) != free:
            raise ConservationError("the free heap and the FREE states differ")
        parents = (self._free[(place - 1) // 2] for place in range(1, len(self._free)))
        if any(parent > child for parent, child in zip(parents, self._free[1:], strict=True)):
            raise ConservationError("the free heap is not a heap")
        faults = {
            "states": [counted[state] for state in BlockState] != self._count,
            "groups": charged != Counter(self._charges()),
            "shared blocks": sum(len(h) > 1 for h in self._holders.values()) != self._shared,
            "holders of nothing": not all(self._holders.values()),
        }
        for fault, is_found in faults.items():
            if is_found:
                raise ConservationError(f"the pool has miscounted its {fault}")

    # --- mechanism -----------------------------------------------------------

    def _charges(self) -> dict[tuple[int, BlockState], int]:
        return {
            (group, state): counts[state]
            for group, counts in self._charged.items()
            for state in BlockState
        }

    def _update(self, block: int) -> BlockState:
        """Moves a block to the state that its holders and the index give it."""
        before = self._state[block]
        holders = self._holders.get(block, _NOBODY)
        after = state_of(holders.values(), is_published=self._published[block])
        if after is before:
            return after
        self._state[block] = after
        self._count[before] -= 1
        self._count[after] += 1
        charged = self._charged.setdefault(self._group[block], [0] * len(BlockState))
        if before is not BlockState.FREE:
            charged[before] -= 1
        if after is BlockState.FREE:
            heapq.heappush(self._free, block)
        else:
            charged[after] += 1
        return after

    def _move(self, source: int) -> int:
        """Makes the lowest FREE block what `source` is, which is about to go."""
        destination = heapq.heappop(self._free)
        self._state[destination] = self._state[source]
        self._group[destination] = self._group[source]
        self._published[destination] = self._published[source]
        if source in self._holders:
            self._holders[destination] = self._holders.pop(source)
        self._record("move", "resize", source)
        self._record("move", "resize", destination)
        return destination

    def _require(self, block: int, operation: str, actor: int | str) -> BlockState:
        """The state of a block that exists and is not the null block."""
        if not 0 <= block < self.num_blocks:
            raise InvalidArgumentError("block", block, f"from 1 to {self.num_blocks - 1}")
        if block == NULL_BLOCK:
            self._refuse(operation, actor, block, "its state forbids that")
        return self._state[block]

    def _refuse(self, operation: str, actor: int | str, block: int, reason: str) -> NoReturn:
        holders = list(self.holders(block))
        raise IllegalTransitionError(
            block=block,
            state=self._state[block].name,
            operation=operation,
            actor=_name(actor),
            reason=reason,
            holder=_name(holders[0]) if len(holders) == 1 else None,
            history=self.history(block),
        )

    def _record(self, operation: str, actor: int | str, block: int) -> None:
        self._serial += 1
        self._history.append((self._serial, operation, actor, block))


def require_size(num_blocks: int) -> None:
    """Raises InvalidArgumentError for a pool in which there is nothing to have."""
    if num_blocks < 2:
        limit = "at least 2 (the null block and one more)"
        raise InvalidArgumentError("num_blocks", num_blocks, limit)


def _name(actor: int | str) -> str:
    return actor if isinstance(actor, str) else f"sequence {actor}"
