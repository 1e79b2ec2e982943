"""BlockPool: who owns each block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcache.errors import (
    ConservationError,
    IllegalTransitionError,
    InvalidArgumentError,
    OutOfBlocksError,
)
from kvcache.pool import BlockPool, BlockState


def ids(*blocks: int) -> NDArray[np.int32]:
    return np.array(blocks, np.int32)


def counts(pool: BlockPool) -> dict[BlockState, int]:
    return {state: pool.count(state) for state in BlockState}


def snapshot(pool: BlockPool) -> object:
    states = [pool.state(block) for block in range(pool.num_blocks)]
    references = [pool.refcount(block) for block in range(pool.num_blocks)]
    indexed = [pool.is_indexed(block) for block in range(pool.num_blocks)]
    return states, references, indexed, counts(pool), pool.free_blocks, pool.shared_blocks


def test_the_lowest_free_blocks_are_allocated_first() -> None:
    pool = BlockPool(9)
    assert pool.allocate(5, holder=1).tolist() == [1, 2, 3, 4, 5]
    pool.release(ids(4, 2), holder=1)
    assert pool.allocate(3, holder=2).tolist() == [2, 4, 6]
    pool.audit()


def test_allocation_is_all_or_nothing_at_exactly_the_capacity() -> None:
    pool = BlockPool(9)
    before = snapshot(pool)
    with pytest.raises(OutOfBlocksError) as caught:
        pool.allocate(9, holder=1)
    assert (caught.value.wanted_blocks, caught.value.free_blocks) == (9, 8)
    assert snapshot(pool) == before
    assert pool.allocate(8, holder=1).size == 8
    assert pool.free_blocks == 0


def test_a_negative_count_is_refused() -> None:
    pool = BlockPool(4)
    with pytest.raises(InvalidArgumentError, match="count is -1"):
        pool.allocate(-1, holder=1)
    pool.audit()


def test_a_pool_needs_a_block_beside_the_null_block() -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks is 1"):
        BlockPool(1)


def test_a_double_free_raises_at_the_offender_with_the_history_and_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(2, holder=7)
    pool.release(ids(1), holder=7)
    before = snapshot(pool)
    with pytest.raises(IllegalTransitionError) as caught:
        pool.release(ids(2, 1), holder=9)
    error = caught.value
    # Block 2 is legal neither: it is somebody else's. Block 1 is found first.
    assert (error.block, error.state, error.actor) == (1, "FREE", "sequence 9")
    assert [(step.operation, step.actor) for step in error.history] == [
        ("allocate", "sequence 7"),
        ("release", "sequence 7"),
    ]
    assert "release by sequence 7" in str(error)
    assert snapshot(pool) == before


def test_a_block_named_twice_in_one_release_is_a_double_free() -> None:
    pool = BlockPool(4)
    pool.allocate(2, holder=7)
    before = snapshot(pool)
    with pytest.raises(IllegalTransitionError, match=r"release of block 2 .* is named twice"):
        pool.release(ids(2, 1, 2), holder=7)
    assert snapshot(pool) == before


def test_a_sequence_cannot_release_the_block_of_another() -> None:
    pool = BlockPool(4)
    pool.allocate(1, holder=7)
    before = snapshot(pool)
    with pytest.raises(IllegalTransitionError, match="held by sequence 7") as caught:
        pool.release(ids(1), holder=8)
    assert caught.value.holder == "sequence 7"
    assert snapshot(pool) == before


def test_a_foreign_release_of_a_shared_block_is_caught_by_the_last_release() -> None:
    pool = BlockPool(4)
    pool.allocate(1, holder=1)
    pool.hold(ids(1), holder=2)
    pool.release(ids(1), holder=5)
    with pytest.raises(IllegalTransitionError, match="is held by another"):
        pool.release(ids(1), holder=1)
    assert pool.state(1) is BlockState.HELD, "never given to a second owner"


def test_the_null_block_belongs_to_nobody() -> None:
    pool = BlockPool(4)
    assert pool.state(0) is BlockState.NULL
    for operation in (pool.hold, pool.release, pool.publish, pool.unpublish, pool.pin):
        with pytest.raises(IllegalTransitionError, match="block is NULL"):
            operation(ids(0), 1)
    pool.audit()


@pytest.mark.parametrize("block", [-1, 4])
def test_ids_outside_the_pool_are_refused(block: int) -> None:
    pool = BlockPool(4)
    pool.allocate(3, holder=1)
    with pytest.raises(InvalidArgumentError, match="from 1 to 3"):
        pool.release(ids(1, block), holder=1)
    pool.audit()


def test_the_last_release_caches_an_indexed_block_and_frees_another() -> None:
    pool = BlockPool(4)
    pool.allocate(2, holder=1)
    pool.publish(ids(1), actor=1)
    pool.hold(ids(1), holder=2)
    assert pool.shared_blocks == 1
    pool.release(ids(1, 2), holder=1)
    assert (pool.state(1), pool.state(2)) == (BlockState.HELD, BlockState.FREE)
    assert pool.shared_blocks == 0
    pool.release(ids(1), holder=2)
    assert pool.state(1) is BlockState.CACHED
    pool.hold(ids(1), holder=3)
    assert (pool.state(1), pool.refcount(1)) == (BlockState.HELD, 1)
    pool.audit()


def test_a_block_cannot_be_published_twice() -> None:
    pool = BlockPool(4)
    pool.allocate(1, holder=1)
    pool.publish(ids(1), actor=1)
    with pytest.raises(IllegalTransitionError, match="in the index already"):
        pool.publish(ids(1), actor=1)


def test_unpublishing_frees_cached_blocks_and_leaves_held_ones_to_their_holders() -> None:
    pool = BlockPool(4)
    pool.allocate(2, holder=1)
    pool.publish(ids(1, 2), actor=1)
    pool.release(ids(2), holder=1)
    pool.unpublish(ids(1, 2), actor="flush")
    assert (pool.state(1), pool.state(2)) == (BlockState.HELD, BlockState.FREE)
    with pytest.raises(IllegalTransitionError, match="is not in the index"):
        pool.unpublish(ids(1), actor="flush")
    pool.release(ids(1), holder=1)
    assert pool.state(1) is BlockState.FREE
    pool.audit()


def test_a_pinned_block_outlives_its_holders() -> None:
    pool = BlockPool(4)
    pool.allocate(2, holder=1)
    with pytest.raises(IllegalTransitionError, match="is not in the index"):
        pool.pin(ids(1), actor="pin")
    pool.publish(ids(1, 2), actor=1)
    pool.pin(ids(1, 2), actor="pin")
    pool.release(ids(1), holder=1)
    assert counts(pool)[BlockState.PINNED] == 2
    with pytest.raises(IllegalTransitionError, match="is held by nobody"):
        pool.release(ids(1), holder=1)
    pool.hold(ids(1), holder=3)
    pool.release(ids(1), holder=3)
    pool.unpin(ids(1, 2), actor="pin")
    assert (pool.state(1), pool.state(2)) == (BlockState.CACHED, BlockState.HELD)
    pool.audit()


def test_a_loading_block_can_be_neither_freed_nor_held_nor_evicted() -> None:
    pool = BlockPool(4)
    loading = pool.begin_load(2, actor="host tier")
    before = snapshot(pool)
    operations: list[Callable[[NDArray[np.int32], int], None]] = [
        pool.release,
        pool.hold,
        pool.publish,
        pool.unpublish,
        pool.pin,
    ]
    for operation in operations:
        with pytest.raises(IllegalTransitionError, match="block is LOADING") as caught:
            operation(loading, 5)
        assert caught.value.history[0].actor == "host tier"
    assert snapshot(pool) == before
    pool.check()
    pool.finish_load(loading[:1], holder=5)
    pool.cancel_load(loading[1:], actor="host tier")
    assert (pool.state(1), pool.state(2)) == (BlockState.HELD, BlockState.FREE)
    pool.release(loading[:1], holder=5)
    pool.audit()


def test_a_late_completion_of_a_cancelled_load_is_illegal() -> None:
    pool = BlockPool(4)
    loading = pool.begin_load(1, actor="host tier")
    pool.cancel_load(loading, actor="host tier")
    pool.allocate(1, holder=2)
    with pytest.raises(IllegalTransitionError, match="finish_load of block 1"):
        pool.finish_load(loading, holder=1)


def test_a_storing_block_stays_until_the_transfer_has_read_it() -> None:
    pool = BlockPool(4)
    pool.allocate(1, holder=1)
    pool.publish(ids(1), actor=1)
    with pytest.raises(IllegalTransitionError, match="block is HELD"):
        pool.begin_store(ids(1), actor="host tier")
    pool.release(ids(1), holder=1)
    pool.begin_store(ids(1), actor="host tier")
    for operation in (pool.hold, pool.release, pool.unpublish):
        with pytest.raises(IllegalTransitionError, match="block is STORING"):
            operation(ids(1), 2)
    pool.finish_store(ids(1), actor="host tier")
    assert pool.state(1) is BlockState.CACHED
    pool.audit()


def test_a_lost_block_breaks_the_conservation_identity() -> None:
    pool = BlockPool(4)
    pool.check()
    pool._free.pop()
    with pytest.raises(ConservationError, match="2 blocks in the free heap and 0 owned make 2"):
        pool.check()


def test_the_history_is_bounded() -> None:
    pool = BlockPool(4)
    for holder in range(1000):
        pool.release(pool.allocate(1, holder), holder)
    assert len(pool._history) <= 8 * 4
    assert pool.history(1)[-1].actor == "sequence 999"
    assert pool.history(3) == ()


def test_the_history_does_not_change_when_a_caller_rewrites_its_array() -> None:
    pool = BlockPool(4)
    table = pool.allocate(2, holder=1)
    pool.publish(table, actor=1)
    table[0] = 3
    assert [step.operation for step in pool.history(1)] == ["allocate", "publish"]
    assert pool.history(3) == ()
