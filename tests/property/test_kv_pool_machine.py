"""Random operations on a BlockPool, legal and illegal, against one small record per block."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvcache.core.pool import BlockPool
from kvcache.core.states import BlockState, HolderKind
from kvcache.errors import IllegalTransitionError, OutOfBlocksError

HOLDERS = st.integers(1, 4)
KINDS = st.sampled_from(HolderKind)
BLOCKS = st.integers(1, 6)


@dataclass
class Record:
    """One block as the rules of the pool describe it."""

    holders: dict[int, HolderKind] = field(default_factory=dict)
    published: bool = False
    group: int = 0

    @property
    def state(self) -> BlockState:
        """The first of the rules that holds."""
        kinds = set(self.holders.values())
        rules = [
            (HolderKind.SEQUENCE in kinds, BlockState.HELD),
            (HolderKind.LOAD in kinds and not self.published, BlockState.LOADING),
            (HolderKind.STORE in kinds, BlockState.STORING),
            (bool(kinds & {HolderKind.PIN, HolderKind.LOAD}), BlockState.PINNED),
            (HolderKind.EXPECT in kinds, BlockState.EXPECTED),
            (self.published, BlockState.CACHED),
            (True, BlockState.FREE),
        ]
        return next(state for applies, state in rules if applies)


class PoolMachine(RuleBasedStateMachine):
    """The pool must do what is legal, and refuse the rest unchanged."""

    @initialize(usable=st.integers(1, 6))
    def start(self, usable: int) -> None:
        self.pool = BlockPool(usable + 1)
        self.records = {block: Record() for block in range(1, usable + 1)}

    def free(self) -> list[int]:
        return [b for b, record in self.records.items() if record.state is BlockState.FREE]

    @rule(holder=HOLDERS, kind=KINDS, group=st.integers(0, 2))
    def allocate(self, holder: int, kind: HolderKind, group: int) -> None:
        free = self.free()
        if not free:
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(holder, kind, group)
            return
        assert self.pool.allocate(holder, kind, group) == free[0]
        self.records[free[0]] = Record({holder: kind}, False, group)

    @rule(block=BLOCKS, holder=HOLDERS, kind=KINDS)
    def hold(self, block: int, holder: int, kind: HolderKind) -> None:
        record = self.records.get(block, Record())
        before = record.state
        if before in (BlockState.FREE, BlockState.LOADING) or holder in record.holders:
            self.refused("hold", block, holder, kind)
            return
        assert self.pool.hold(block, holder, kind) is before
        record.holders[holder] = kind

    @rule(block=BLOCKS, holder=HOLDERS)
    def release(self, block: int, holder: int) -> None:
        record = self.records.get(block, Record())
        if holder not in record.holders:
            self.refused("release", block, holder)
            return
        after = self.pool.release(block, holder)
        del record.holders[holder]
        assert after is record.state

    @rule(block=BLOCKS, holder=HOLDERS)
    def publish(self, block: int, holder: int) -> None:
        record = self.records.get(block, Record())
        if not record.holders or record.published:
            self.refused("publish", block, holder)
            return
        self.pool.publish(block, holder)
        record.published = True

    @rule(block=BLOCKS)
    def unpublish(self, block: int) -> None:
        record = self.records.get(block, Record())
        if not record.published:
            self.refused("unpublish", block, "eviction")
            return
        self.pool.unpublish(block, "eviction")
        record.published = False

    def refused(self, operation: str, block: int, *arguments: object) -> None:
        if block not in self.records:
            return
        event(f"{operation} of a {self.records[block].state.name} block refused")
        with pytest.raises(IllegalTransitionError) as caught:
            getattr(self.pool, operation)(block, *arguments)
        assert (caught.value.block, caught.value.operation) == (block, operation)
        assert caught.value.state == self.records[block].state.name

    @rule(usable=st.integers(1, 6))
    def resize(self, usable: int) -> None:
        used = [block for block in self.records if block not in self.free()]
        if len(used) > usable:
            with pytest.raises(OutOfBlocksError):
                self.pool.resize(usable + 1)
            return
        holes = [block for block in range(1, usable + 1) if block not in used]
        moves = list(zip((b for b in used if b > usable), holes, strict=False))
        assert self.pool.resize(usable + 1) == moves
        after = {block: self.records.get(block, Record()) for block in range(1, usable + 1)}
        after |= {destination: self.records[source] for source, destination in moves}
        self.records = after

    @invariant()
    def the_pool_is_as_the_records_say(self) -> None:
        self.pool.audit()
        for block, record in self.records.items():
            assert self.pool.state(block) is record.state
            assert self.pool.holders(block) == record.holders
            assert self.pool.is_published(block) == record.published
        states = [record.state for record in self.records.values()]
        for state in BlockState:
            assert self.pool.count(state) == states.count(state) + (state is BlockState.NULL)
            for group in range(3):
                of_group = [r.state for r in self.records.values() if r.group == group]
                charged = 0 if state is BlockState.FREE else of_group.count(state)
                assert self.pool.charged(group)[state] == charged
        shared = sum(len(record.holders) > 1 for record in self.records.values())
        assert self.pool.shared_blocks == shared
        assert self.pool.free_blocks == len(self.free())
        used = [block for block in self.records if block not in self.free()]
        assert self.pool.highest_used() == max(used, default=0)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
