"""Pools of another size, of each core."""

from __future__ import annotations

from kv_core_driver import NewCore, array

from kvcache.core import NO_MATCH, HolderKind
from kvcache.errors import (
    InvalidArgumentError,
    OutOfBlocksError,
)

PIN, EXPECT = HolderKind.PIN, HolderKind.EXPECT


def test_a_smaller_pool_takes_tables_index_and_order_along(new_core: NewCore) -> None:
    cache = new_core(12)
    cache.use([1, 1, 2, 2])
    running = cache.start([3, 3, 4, 4, 5])
    forked = cache.core.fork(running, 50)
    assert forked == (5, 6)
    cache.use([6, 6])
    cache.use([8, 8, 9, 9])
    pin = cache.keep([8, 8, 9, 9], PIN)
    cache.core.evict(1)  # block 2
    cache.core.drain_events()
    assert cache.core.highest_used() == 9
    assert cache.core.resize(9) == [(9, 2)]
    assert cache.table(pin) == [8, 2]
    assert cache.core.resize(7) == [(8, 1)]
    assert cache.table(pin) == [1, 2]
    assert (cache.table(running), cache.table(50)) == ([3, 4, 5], [3, 4, 6])
    assert cache.cached([8, 8, 9, 9]) == 2
    assert cache.core.drain_events() == [
        ("moved", ((9, 2),)),
        ("removed", (1, 7)),
        ("moved", ((8, 1),)),
    ]


def test_moves_are_told_after_the_evictions_that_made_room(new_core: NewCore) -> None:
    cache = new_core(12)
    cache.use([1, 1])
    low = cache.start([7])
    cache.use([2, 2, 3, 3])
    cache.use([4, 4])
    high = cache.start([5, 5, 6])
    assert cache.table(high) == [6, 7]
    cache.core.drain_events()
    assert cache.core.resize(6) == [(6, 1), (7, 4)]
    assert (cache.table(low), cache.table(high)) == ([2], [1, 4])
    assert cache.core.drain_events() == [("removed", (1, 4)), ("moved", ((6, 1), (7, 4)))]
    assert (cache.cached([2, 2, 3, 3]), cache.cached([5, 5])) == (1, 1)
    assert cache.core.highest_used() == 5
    assert cache.core.evict(9) == 2
    cache.core.release(high)
    cache.start([5, 5, 8])
    assert cache.states() == {"free": 2, "held": 3}


def test_a_moved_block_keeps_its_turn(new_core: NewCore) -> None:
    cache = new_core(12)
    blocker = cache.start(range(8), publish=False)
    for token in (1, 2, 3):
        cache.use([token, token])
    cache.core.release(blocker)
    assert cache.core.resize(6) == [(6, 1), (7, 2)]
    for token in (1, 2, 3):
        assert cache.core.evict(1) == 1
        assert cache.cached([token, token]) == 0


def test_a_pool_does_not_shrink_below_what_cannot_be_evicted(new_core: NewCore) -> None:
    cache = new_core(9)
    cache.use([1, 1, 2, 2])
    cache.keep([1, 1], EXPECT)
    cache.start([3, 3, 4])
    cache.refused(InvalidArgumentError, lambda: cache.core.resize(1))
    error = cache.refused(OutOfBlocksError, lambda: cache.core.resize(3))
    assert vars(error) == {"wanted_blocks": 3, "free_blocks": 2}
    assert cache.core.resize(4) == [(4, 2)]
    assert cache.states() == {"expected": 1, "held": 2}
    assert cache.core.resize(6) == []
    assert cache.states() == {"free": 2, "expected": 1, "held": 2}


def test_hints_follow_a_moved_block(new_core: NewCore) -> None:
    cache = new_core(12, 4)
    blocker = cache.start(range(12), publish=False)
    cache.use([1, 2, 3, 4])
    cache.core.release(blocker)
    wanted = array([1, 2, 9])
    assert cache.core.partial_match(b"", wanted, NO_MATCH) == (4, 2)
    assert cache.core.resize(4) == [(4, 1)]
    assert cache.core.partial_match(b"", wanted, NO_MATCH) == (1, 2)
