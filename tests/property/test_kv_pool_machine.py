"""Random operations on a BlockPool, legal and illegal, against one small record per block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from kvcache.errors import IllegalTransitionError, OutOfBlocksError
from kvcache.pool import BlockPool, BlockState

FREE, HELD, CACHED = BlockState.FREE, BlockState.HELD, BlockState.CACHED
PINNED, LOADING, STORING = BlockState.PINNED, BlockState.LOADING, BlockState.STORING


@dataclass
class Record:
    """One block as the rules of the pool describe it."""

    state: BlockState = FREE
    holders: list[int] = field(default_factory=list)
    indexed: bool = False


Change = Callable[[Record, int], None]
Legal = Callable[[Record, int], bool]


def let_go(record: Record, holder: int) -> None:
    record.holders.remove(holder)
    if not record.holders and record.state is HELD:
        record.state = CACHED if record.indexed else FREE


def take(record: Record, holder: int) -> None:
    record.holders.append(holder)
    record.state = PINNED if record.state is PINNED else HELD


def leave_index(record: Record, _holder: int) -> None:
    record.indexed = False
    record.state = FREE if record.state is CACHED else record.state


def become(state: BlockState) -> Change:
    def change(record: Record, _holder: int) -> None:
        record.state = state

    return change


OPERATIONS: dict[str, tuple[Legal, Change]] = {
    "hold": (lambda r, _: r.state in (HELD, CACHED, PINNED), take),
    "release": (lambda r, h: r.state in (HELD, PINNED) and h in r.holders, let_go),
    "publish": (
        lambda r, _: r.state is HELD and not r.indexed,
        lambda r, _: setattr(r, "indexed", True),
    ),
    "unpublish": (lambda r, _: r.state in (HELD, CACHED) and r.indexed, leave_index),
    "pin": (lambda r, _: r.state in (HELD, CACHED) and r.indexed, become(PINNED)),
    "unpin": (
        lambda r, _: r.state is PINNED,
        lambda r, _: setattr(r, "state", HELD if r.holders else CACHED),
    ),
    "finish_load": (lambda r, _: r.state is LOADING, take),
    "cancel_load": (lambda r, _: r.state is LOADING, become(FREE)),
    "begin_store": (lambda r, _: r.state is CACHED, become(STORING)),
    "finish_store": (lambda r, _: r.state is STORING, become(CACHED)),
}


class PoolMachine(RuleBasedStateMachine):
    """Holders come from 1, 10, 100: no sum of some of them is another one."""

    @initialize(usable=st.integers(1, 6))
    def start(self, usable: int) -> None:
        self.pool = BlockPool(usable + 1)
        self.records = {block: Record() for block in range(1, usable + 1)}

    @rule(count=st.integers(0, 4), holder=st.sampled_from([1, 10, 100]), load=st.booleans())
    def take_free(self, count: int, holder: int, load: bool) -> None:
        free = sorted(block for block, record in self.records.items() if record.state is FREE)

        def call() -> NDArray[np.int32]:
            return (
                self.pool.begin_load(count, "tier") if load else self.pool.allocate(count, holder)
            )

        if count > len(free):
            with pytest.raises(OutOfBlocksError) as caught:
                call()
            assert (caught.value.wanted_blocks, caught.value.free_blocks) == (count, len(free))
            return
        taken = call()
        assert taken.tolist() == free[:count]
        for block in free[:count]:
            self.records[block] = Record(LOADING if load else HELD, [] if load else [holder])

    @rule(
        operation=st.sampled_from(sorted(OPERATIONS)),
        blocks=st.lists(st.integers(1, 6), max_size=3),
        holder=st.sampled_from([1, 10, 100]),
    )
    def operate(self, operation: str, blocks: list[int], holder: int) -> None:
        blocks = [block for block in blocks if block in self.records]
        legal, change = OPERATIONS[operation]
        records = [self.records[block] for block in blocks]
        if operation == "release" and any(
            len(record.holders) > 1 and holder not in record.holders for record in records
        ):
            return  # known to be caught by the last release only
        expected = len(set(blocks)) == len(blocks) and all(legal(r, holder) for r in records)
        call = getattr(self.pool, operation)
        if not expected:
            with pytest.raises(IllegalTransitionError) as caught:
                call(np.array(blocks, np.int32), holder)
            assert caught.value.block in blocks
            assert caught.value.operation == operation
            return
        call(np.array(blocks, np.int32), holder)
        for record in records:
            change(record, holder)

    @invariant()
    def the_pool_is_as_the_records_say(self) -> None:
        self.pool.audit()
        for block, record in self.records.items():
            assert self.pool.state(block) is record.state
            assert self.pool.refcount(block) == len(record.holders)
            assert self.pool.is_indexed(block) == record.indexed
        states = [record.state for record in self.records.values()]
        for state in BlockState:
            assert self.pool.count(state) == states.count(state) + (state is BlockState.NULL)
        shared = sum(len(record.holders) > 1 for record in self.records.values())
        assert self.pool.shared_blocks == shared
        assert self.pool.free_blocks == states.count(FREE)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
