"""CacheManager: another size while sequences live."""

from __future__ import annotations

import pytest
from kv_cores import NewManager
from kv_manager_driver import RED, ByteMemory, Clock, begin, request, run, serve, tokens

from kvcache import NeverFits, ResizeResult, TenantShare
from kvcache.errors import InvalidArgumentError, PoolInUseError
from kvcache.events import EventLog, Moved, Removed


def test_a_grown_pool_admits_more(new_manager: NewManager) -> None:
    manager = new_manager(5, 4)
    assert manager.admit(request(1, range(32))) == NeverFits(8, 4, 16)
    assert manager.resize(9) == ResizeResult(num_blocks=9, moved_blocks=0, evicted_blocks=0)
    assert manager.usable_blocks == manager.stats().total == 8
    serve(manager, request(1, range(32)))


def test_a_shrinking_pool_moves_what_is_held_with_its_contents(new_manager: NewManager) -> None:
    memory = ByteMemory(9, 4)
    manager = new_manager(9, 4, memory=memory)
    run(manager, request(1, range(8)))
    run(manager, request(2, range(100, 112)))
    for number, block in enumerate(manager.block_table(2).tolist()):
        memory.blocks[block][:] = bytes([number + 1] * 4)
    manager.flush(None)
    manager.release(1)
    assert manager.resize(4) == ResizeResult(num_blocks=4, moved_blocks=2, evicted_blocks=0)
    assert manager.block_table(2).tolist() == [3, 1, 2]
    assert memory.copies == [(4, 1), (5, 2)]
    assert [memory.blocks[block][0] for block in (3, 1, 2)] == [1, 2, 3]
    assert manager.admit(request(3, range(16))) == NeverFits(4, 3, 12)
    manager.audit()


def test_cached_and_expected_blocks_give_way_to_a_smaller_pool(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(16)))
    manager.expect(request(8, range(9)))
    manager.expect(request(9, range(17)))
    run(manager, request(2, range(100, 108)))
    result = manager.resize(5)
    assert (result.moved_blocks, result.evicted_blocks) == (2, 2)
    stats = manager.stats()
    assert (stats.held, stats.expected, stats.dropped_expectations) == (2, 2, 1)
    assert manager.lookup(RED, tokens(range(17))) == 8
    manager.resize(3)
    assert (manager.stats().held, manager.stats().expected) == (2, 0)
    manager.audit()


def test_what_is_in_use_is_not_shrunk_away(new_manager: NewManager) -> None:
    clock = Clock()
    manager = new_manager(9, 4, clock=clock)
    serve(manager, request(1, range(8)))
    manager.pin(RED, tokens(range(8)), seconds=10)
    manager.expect(request(9, range(9)))
    run(manager, request(2, range(100, 108)))
    before = manager.stats()
    with pytest.raises(PoolInUseError) as caught:
        manager.resize(4)
    assert (caught.value.wanted_blocks, caught.value.in_use_blocks) == (3, 4)
    assert manager.stats() == before
    clock.now += 10
    manager.resize(4)
    assert manager.stats().expired_pins == 1


def test_a_lease_reads_its_blocks_where_they_are_now(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(16)))
    lease = manager.begin_load(RED, tokens(range(50, 62)), seconds=10)
    assert lease is not None
    assert lease.blocks.tolist() == [5, 6, 7]
    manager.flush(None)
    manager.release(1)
    manager.resize(4)
    assert lease.blocks.tolist() == [1, 2, 3]


def test_moves_are_told_after_what_was_evicted_for_them(new_manager: NewManager) -> None:
    log = EventLog()
    manager = new_manager(9, 4, events=log)
    run(manager, request(1, range(8)))
    run(manager, request(2, range(100, 108)))
    manager.release(1)
    before = log.last_number
    manager.resize(4)
    assert log.since(before) == (Removed(before + 1, (2,)), Moved(before + 2, ((4, 2),)))


@pytest.mark.parametrize("num_blocks", [1, 0, -5, 2**31])
def test_a_size_that_cannot_be_is_refused(new_manager: NewManager, num_blocks: int) -> None:
    manager = new_manager(9, 4)
    with pytest.raises(InvalidArgumentError, match="num_blocks is"):
        manager.resize(num_blocks)
    assert manager.usable_blocks == 8


def test_a_pool_does_not_shrink_below_what_is_guaranteed(new_manager: NewManager) -> None:
    shares = {"a": TenantShare(floor_blocks=2), "b": TenantShare(floor_blocks=3)}
    manager = new_manager(9, 4, tenants=shares)
    with pytest.raises(InvalidArgumentError, match="num_blocks is 5, but must be at least 6"):
        manager.resize(5)
    manager.resize(6)
    begin(manager, request(1, range(12), tenant="b"))
