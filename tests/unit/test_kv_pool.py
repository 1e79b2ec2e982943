"""BlockPool: who owns each block."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcache.core.pool import BlockPool
from kvcache.core.states import BlockState, HolderKind, state_of
from kvcache.errors import (
    ConservationError,
    IllegalTransitionError,
    InvalidArgumentError,
    OutOfBlocksError,
)

SEQUENCE, PIN, LOAD = HolderKind.SEQUENCE, HolderKind.PIN, HolderKind.LOAD
STORE, EXPECT = HolderKind.STORE, HolderKind.EXPECT


def filled(num_blocks: int, count: int, holder: int = 1) -> BlockPool:
    """A pool of which a sequence holds the first `count` blocks."""
    pool = BlockPool(num_blocks)
    for _ in range(count):
        pool.allocate(holder)
    return pool


def counts(pool: BlockPool) -> dict[str, int]:
    """The states that blocks are in; the null block left out."""
    states = (state for state in BlockState if state is not BlockState.NULL)
    return {state.name: pool.count(state) for state in states if pool.count(state)}


def snapshot(pool: BlockPool) -> object:
    blocks = range(pool.num_blocks)
    of_blocks = [(pool.state(b), dict(pool.holders(b)), pool.is_published(b)) for b in blocks]
    charged = {group: tuple(pool.charged(group)) for group in range(4)}
    return of_blocks, counts(pool), charged, pool.free_blocks, pool.shared_blocks


@pytest.mark.parametrize(
    ("kinds", "outside", "in_index"),
    [
        ([], "FREE", "CACHED"),
        ([EXPECT], "EXPECTED", "EXPECTED"),
        ([PIN], "PINNED", "PINNED"),
        ([EXPECT, PIN], "PINNED", "PINNED"),
        ([LOAD], "LOADING", "PINNED"),
        ([PIN, LOAD], "LOADING", "PINNED"),
        ([STORE], "STORING", "STORING"),
        ([PIN, STORE, EXPECT], "STORING", "STORING"),
        ([LOAD, STORE], "LOADING", "STORING"),
        ([SEQUENCE], "HELD", "HELD"),
        ([EXPECT, STORE, LOAD, PIN, SEQUENCE], "HELD", "HELD"),
    ],
)
def test_the_state_of_a_block_is_what_its_holders_make_it(
    kinds: list[HolderKind], outside: str, in_index: str
) -> None:
    assert state_of(kinds, is_published=False).name == outside
    assert state_of(kinds, is_published=True).name == in_index


def test_the_lowest_free_blocks_are_allocated_first() -> None:
    pool = filled(9, 5)
    for block in (4, 2):
        pool.release(block, 1)
    assert [pool.allocate(2) for _ in range(3)] == [2, 4, 6]
    pool.audit()


def test_all_blocks_but_the_null_block_can_be_had_and_no_more() -> None:
    pool = filled(9, 8)
    before = snapshot(pool)
    with pytest.raises(OutOfBlocksError) as caught:
        pool.allocate(1)
    assert (caught.value.wanted_blocks, caught.value.free_blocks) == (1, 0)
    assert snapshot(pool) == before
    assert pool.free_blocks == 0


def test_a_pool_needs_a_block_beside_the_null_block() -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks is 1"):
        BlockPool(1)


def test_a_double_free_raises_at_the_offender_with_the_history_and_changes_nothing() -> None:
    pool = filled(4, 2, holder=7)
    pool.release(1, 7)
    before = snapshot(pool)
    with pytest.raises(IllegalTransitionError) as caught:
        pool.release(1, 9)
    error = caught.value
    assert (error.block, error.state, error.actor) == (1, "FREE", "sequence 9")
    assert [(step.serial, step.operation, step.actor) for step in error.history] == [
        (1, "allocate", "sequence 7"),
        (3, "release", "sequence 7"),
    ]
    assert "release by sequence 7" in str(error)
    assert snapshot(pool) == before


@pytest.mark.parametrize("others", [[], [2, 3]])
def test_a_holder_cannot_release_the_block_of_another(others: list[int]) -> None:
    pool = filled(4, 1, holder=7)
    for other in others:
        pool.hold(1, other)
    before = snapshot(pool)
    with pytest.raises(IllegalTransitionError, match="is held by another") as caught:
        pool.release(1, 8)
    assert caught.value.holder == (None if others else "sequence 7"), "if there is only one"
    assert snapshot(pool) == before


def test_a_holder_holds_a_block_once() -> None:
    pool = filled(4, 1)
    before = snapshot(pool)
    with pytest.raises(IllegalTransitionError, match="is held by it already"):
        pool.hold(1, 1, PIN)
    assert snapshot(pool) == before


def test_the_null_block_belongs_to_nobody() -> None:
    pool = BlockPool(4)
    assert pool.state(0) is BlockState.NULL
    for operation in (pool.hold, pool.release, pool.publish, pool.unpublish):
        with pytest.raises(IllegalTransitionError, match="block is NULL"):
            operation(0, 1)
    pool.audit()


@pytest.mark.parametrize("block", [-1, 4])
def test_ids_outside_the_pool_are_refused(block: int) -> None:
    pool = filled(4, 3)
    for operation in (pool.hold, pool.release, pool.publish, pool.unpublish):
        with pytest.raises(InvalidArgumentError, match="from 1 to 3"):
            operation(block, 1)
    pool.audit()


def test_the_last_release_caches_an_indexed_block_and_frees_another() -> None:
    pool = filled(4, 2)
    pool.publish(1, 1)
    assert pool.hold(1, 2) is BlockState.HELD
    assert pool.shared_blocks == 1
    assert [pool.release(block, 1) for block in (1, 2)] == [BlockState.HELD, BlockState.FREE]
    assert pool.shared_blocks == 0
    assert pool.release(1, 2) is BlockState.CACHED
    assert pool.hold(1, 3) is BlockState.CACHED, "the state before"
    assert pool.holders(1) == {3: SEQUENCE}
    pool.audit()


def test_a_free_block_cannot_be_held() -> None:
    with pytest.raises(IllegalTransitionError, match="block is FREE"):
        BlockPool(4).hold(2, 1)


def test_only_a_held_block_is_published_and_only_once() -> None:
    pool = filled(4, 1)
    with pytest.raises(IllegalTransitionError, match="block is FREE"):
        pool.publish(2, 1)
    pool.publish(1, 1)
    with pytest.raises(IllegalTransitionError, match="in the index already"):
        pool.publish(1, 1)
    pool.audit()


def test_unpublishing_frees_cached_blocks_and_leaves_held_ones_to_their_holders() -> None:
    pool = filled(4, 2)
    for block in (1, 2):
        pool.publish(block, 1)
    pool.release(2, 1)
    for block in (1, 2):
        pool.unpublish(block, "flush")
    assert counts(pool) == {"FREE": 2, "HELD": 1}
    with pytest.raises(IllegalTransitionError, match="is not in the index"):
        pool.unpublish(1, "flush")
    assert pool.release(1, 1) is BlockState.FREE
    assert str(pool.history(2)[-1]) == "#7 unpublish by flush"
    pool.audit()


def test_pins_and_expectations_outlive_the_sequence() -> None:
    pool = filled(4, 2)
    for block in (1, 2):
        pool.publish(block, 1)
    pool.hold(1, 100, PIN)
    for block in (1, 2):
        pool.hold(block, 200, EXPECT)
        pool.release(block, 1)
    assert counts(pool) == {"FREE": 1, "EXPECTED": 1, "PINNED": 1}
    assert pool.release(1, 100) is BlockState.EXPECTED
    assert [pool.release(block, 200) for block in (1, 2)] == [BlockState.CACHED] * 2
    pool.audit()


def test_a_loading_block_can_be_neither_held_nor_freed_by_others() -> None:
    pool = BlockPool(4)
    assert pool.allocate(9, LOAD) == 1
    before = snapshot(pool)
    refused: list[Callable[[], object]] = [
        lambda: pool.hold(1, 5),
        lambda: pool.hold(1, 5, PIN),
        lambda: pool.release(1, 5),
        lambda: pool.unpublish(1, "eviction"),
    ]
    for operation in refused:
        with pytest.raises(IllegalTransitionError, match="block is LOADING"):
            operation()
    assert snapshot(pool) == before
    pool.publish(1, 9)
    assert pool.state(1) is BlockState.PINNED, "until the transfer lets go"
    pool.hold(1, 5)
    assert pool.release(1, 9) is BlockState.HELD
    pool.audit()


def test_a_late_completion_of_a_cancelled_load_is_illegal() -> None:
    pool = BlockPool(4)
    pool.allocate(9, LOAD)
    assert pool.release(1, 9) is BlockState.FREE
    pool.allocate(2)
    with pytest.raises(IllegalTransitionError, match="release of block 1 by sequence 9"):
        pool.release(1, 9)


def test_a_storing_block_stays_until_the_transfer_has_read_it() -> None:
    pool = filled(4, 1)
    pool.publish(1, 1)
    pool.hold(1, 9, STORE)
    pool.release(1, 1)
    assert pool.state(1) is BlockState.STORING
    pool.hold(1, 2)
    assert pool.state(1) is BlockState.HELD, "it can be read meanwhile"
    assert pool.release(1, 2) is BlockState.STORING
    assert pool.release(1, 9) is BlockState.CACHED
    pool.audit()


def test_blocks_are_charged_to_a_group_until_they_are_free() -> None:
    pool = BlockPool(4)
    pool.allocate(1, SEQUENCE, 3)
    pool.publish(1, 1)
    pool.hold(1, 2)
    assert (pool.group(1), pool.charged(3)[BlockState.HELD]) == (3, 1)
    for holder in (1, 2):
        pool.release(1, holder)
    assert pool.charged(3)[BlockState.CACHED] == 1
    pool.unpublish(1, "eviction")
    assert list(pool.groups) == [3]
    assert sum(pool.charged(3)) == sum(pool.charged(0)) == 0
    pool.allocate(1, SEQUENCE, 0)
    assert pool.charged(0)[BlockState.HELD] == 1
    pool.audit()


def test_a_larger_pool_has_more_free_blocks() -> None:
    pool = filled(3, 2)
    assert pool.resize(5) == []
    assert [pool.allocate(1) for _ in range(2)] == [3, 4]
    pool.audit()


def test_a_smaller_pool_moves_what_lies_behind_its_end_to_the_lowest_free_blocks() -> None:
    pool = filled(10, 8)
    for block in (1, 3, 4, 7):
        pool.release(block, 1)
    pool.hold(8, 2, PIN)
    pool.publish(8, 1)
    assert pool.highest_used() == 8
    assert pool.resize(6) == [(6, 1), (8, 3)]
    assert (pool.highest_used(), pool.free_blocks) == (5, 1)
    assert pool.holders(3) == {1: SEQUENCE, 2: PIN}
    assert pool.is_published(3)
    assert str(pool.history(3)[-1]) == "#18 move by resize"
    assert pool.allocate(1) == 4
    pool.audit()


def test_the_free_blocks_of_a_smaller_pool_are_still_in_order() -> None:
    pool = filled(16, 15)
    for block in (1, 10, 2, 12, 11, 3, 4, 15, 14, 13):
        pool.release(block, 1)
    assert pool.resize(11) == []
    pool.audit()
    assert [pool.allocate(1) for _ in range(5)] == [1, 2, 3, 4, 10]


def test_a_pool_does_not_become_too_small_for_what_is_in_it() -> None:
    pool = filled(10, 5)
    before = snapshot(pool)
    with pytest.raises(OutOfBlocksError) as caught:
        pool.resize(5)
    assert (caught.value.wanted_blocks, caught.value.free_blocks) == (5, 4)
    with pytest.raises(InvalidArgumentError, match="num_blocks is 1"):
        pool.resize(1)
    assert snapshot(pool) == before
    assert pool.resize(6) == []
    pool.audit()


def test_an_empty_pool_uses_no_block() -> None:
    pool = BlockPool(4)
    assert pool.highest_used() == 0
    pool.audit()


def test_a_lost_block_breaks_the_conservation_identity() -> None:
    pool = BlockPool(4)
    pool.check()
    pool._free.pop()
    with pytest.raises(ConservationError, match="2 blocks in the free heap and 0 owned make 2"):
        pool.check()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda pool: pool._holders[1].clear(), "block 1 is HELD against its holders"),
        (lambda pool: pool._published.__setitem__(3, True), "block 3 is FREE against"),
        (lambda pool: pool._charged[0].__setitem__(1, 1), "miscounted its groups"),
        (lambda pool: setattr(pool, "_shared", 1), "miscounted its shared blocks"),
        (lambda pool: pool._free.__setitem__(0, 1), "the free heap and the FREE states differ"),
        (lambda pool: pool._free.reverse(), "the free heap is not a heap"),
    ],
)
def test_the_audit_finds_books_that_do_not_agree(
    break_it: Callable[[BlockPool], None], message: str
) -> None:
    pool = filled(5, 2)
    pool.audit()
    break_it(pool)
    with pytest.raises(ConservationError, match=message):
        pool.audit()


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcache.core.pool._HISTORY", 10)
    pool = BlockPool(4)
    for holder in range(1000):
        pool.release(pool.allocate(holder), holder)
    assert len(pool._history) == 10
    assert pool.history(1)[-1].actor == "sequence 999"
    assert pool.history(3) == ()
