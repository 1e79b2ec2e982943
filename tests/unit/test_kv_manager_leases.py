"""CacheManager: pins and transfers, and what ends them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from kv_cores import NewManager
from kv_manager_driver import BLUE, RED, Clock, begin, request, run, serve, tokens

from kvcache import Fits, NotNow, leases
from kvcache.errors import InvalidArgumentError, UnknownSequenceError

# --- pins ---


def test_a_pinned_prefix_outlasts_everything_that_wants_its_blocks(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(17)))
    pin = manager.pin(RED, tokens(range(9)), seconds=60)
    assert pin.tokens == 8
    assert manager.stats().pinned == 2
    serve(manager, request(2, range(100, 124)))  # all the other six blocks
    assert manager.lookup(RED, tokens(range(17))) == 8
    assert manager.unpin(pin.pin_id)
    assert not manager.unpin(pin.pin_id)
    serve(manager, request(3, range(200, 232)))
    assert manager.lookup(RED, tokens(range(17))) == 0


def test_a_pin_is_over_at_its_deadline_and_the_request_that_needs_its_blocks_gets_them(
    new_manager: NewManager,
) -> None:
    clock = Clock()
    manager = new_manager(9, 4, clock=clock)
    serve(manager, request(1, range(17)))
    pin = manager.pin(RED, tokens(range(16)), seconds=10)
    assert pin.expires_at_seconds == clock.now + 10
    whole_pool = request(2, range(100, 132))
    clock.now += 9.9
    assert isinstance(manager.admit(whole_pool), NotNow), "respected until then"
    clock.now += 0.1
    assert isinstance(manager.admit(whole_pool), Fits)
    assert manager.stats().expired_pins == 1
    assert not manager.unpin(pin.pin_id)
    assert begin(manager, whole_pool) == 0
    manager.audit()


def test_an_append_ends_what_is_overdue_before_it_gives_up(new_manager: NewManager) -> None:
    clock = Clock()
    manager = new_manager(4, 4, clock=clock)
    serve(manager, request(1, range(8)))
    manager.pin(RED, tokens(range(8)), seconds=10)
    begin(manager, request(2, range(100, 104)))
    assert manager.append(2, 7) == 1
    clock.now += 10
    assert manager.append(2, 7) == 0
    manager.audit()


def test_a_pin_of_what_is_not_cached_is_over_at_once(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    pin = manager.pin(RED, tokens(range(8)), seconds=10)
    assert pin.tokens == 0
    assert not manager.unpin(pin.pin_id)
    assert manager.stats().pinned == 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_hold_without_an_end_is_refused(new_manager: NewManager, seconds: float) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    for hold in (manager.pin, manager.begin_load, manager.begin_store):
        with pytest.raises(InvalidArgumentError, match="seconds is"):
            hold(RED, tokens(range(8)), seconds)
    assert manager.stats().cached == 2


def test_expiring_ends_each_hold_once_and_only_when_it_is_due(new_manager: NewManager) -> None:
    clock = Clock()
    manager = new_manager(20, 4, clock=clock)
    serve(manager, request(1, range(8)))
    for seconds in (30, 10, 20):
        manager.pin(RED, tokens(range(8)), seconds)
    unpinned = manager.pin(RED, tokens(range(8)), 15)
    manager.unpin(unpinned.pin_id)
    seen = []
    for _ in range(4):
        seen.append(manager.expire())
        clock.now += 10
    assert seen == [0, 1, 1, 1]
    assert manager.stats().expired_pins == 3


def test_holds_that_end_long_before_their_deadline_take_no_memory(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    kept = [manager.pin(RED, tokens(range(8)), 10) for _ in range(40)]

    tracemalloc.start()
    try:
        for _ in range(2000):
            assert manager.unpin(manager.pin(RED, tokens(range(8)), 86_400).pin_id)
        taken = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    of_leases = taken.filter_traces([tracemalloc.Filter(True, leases.__file__)])
    assert sum(trace.size for trace in of_leases.traces) < 16_000
    assert all(manager.unpin(pin.pin_id) for pin in kept)


def test_a_lease_is_no_sequence(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    pin = manager.pin(RED, tokens(range(8)), 10)
    assert not manager.release(pin.pin_id)
    assert not manager.end_lease(pin.pin_id)
    with pytest.raises(UnknownSequenceError):
        manager.preempt(pin.pin_id)
    with pytest.raises(UnknownSequenceError):
        manager.fork(pin.pin_id, 5)
    with pytest.raises(UnknownSequenceError):
        manager.append(pin.pin_id, 8)
    load = manager.begin_load(RED, tokens(range(12)), 10)
    assert load is not None
    with pytest.raises(UnknownSequenceError):
        manager.commit(load.lease_id, 12)
    assert manager.end_lease(load.lease_id)
    assert manager.stats().live_sequences == 0
    assert manager.admit(request(2, range(100, 130))).holders == ()  # type: ignore[union-attr]


# --- loads ---


def test_a_load_fills_blocks_behind_what_is_cached(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(9)))
    lease = manager.begin_load(RED, tokens(range(18)), seconds=10)
    assert lease is not None
    assert lease.first_block_index == 2
    assert lease.blocks.tolist() == [3, 4]
    stats = manager.stats()
    assert (stats.loading, stats.pinned, stats.cached) == (2, 2, 0)
    assert manager.lookup(RED, tokens(range(18))) == 8, "not to be seen before it is there"
    assert manager.pending_prefix(request(2, range(18))) == 16, "but worth waiting for"
    assert manager.finish_load(lease.lease_id, loaded_tokens=16)
    assert manager.lookup(RED, tokens(range(18))) == 16
    assert manager.stats().cached == 4
    with pytest.raises(UnknownSequenceError):
        _ = lease.blocks
    manager.audit()


def test_what_came_of_a_load_is_kept_and_the_rest_freed(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    lease = manager.begin_load(RED, tokens(range(16)), seconds=10)
    assert lease is not None
    assert manager.finish_load(lease.lease_id, loaded_tokens=11)
    assert manager.lookup(RED, tokens(range(17))) == 8
    assert (manager.stats().cached, manager.stats().free) == (2, 6)
    assert not manager.finish_load(lease.lease_id, loaded_tokens=16), "a second time"


def test_a_lost_load_frees_its_blocks_at_the_deadline_and_its_late_completion_is_ignored(
    new_manager: NewManager,
) -> None:
    clock = Clock()
    manager = new_manager(5, 4, clock=clock)
    lease = manager.begin_load(RED, tokens(range(16)), seconds=10)
    assert lease is not None
    other = request(2, range(100, 116))
    assert isinstance(manager.admit(other), NotNow)
    clock.now += 10
    run(manager, other)
    assert not manager.finish_load(lease.lease_id, loaded_tokens=16)
    assert not manager.end_lease(lease.lease_id)
    assert manager.lookup(RED, tokens(range(17))) == 0
    stats = manager.stats()
    assert (stats.expired_loads, stats.late_completions) == (1, 1)
    manager.audit()


def test_a_load_that_is_given_up_leaves_nothing(new_manager: NewManager) -> None:
    manager = new_manager(5, 4)
    lease = manager.begin_load(RED, tokens(range(16)), seconds=10)
    assert lease is not None
    assert manager.end_lease(lease.lease_id)
    assert manager.stats().free == 4
    serve(manager, request(1, range(5)))
    again = manager.begin_load(RED, tokens(range(16)), seconds=10)
    assert again is not None
    assert manager.finish_load(again.lease_id, loaded_tokens=0)
    assert (manager.stats().free, manager.stats().cached) == (3, 1)


def test_a_load_of_what_is_computed_meanwhile_ends_with_one_copy(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    lease = manager.begin_load(RED, tokens(range(8)), seconds=10)
    assert lease is not None
    run(manager, request(1, range(9)))
    assert manager.finish_load(lease.lease_id, loaded_tokens=8)
    stats = manager.stats()
    assert (stats.held, stats.cached, stats.deduplicated_blocks) == (3, 0, 2)
    manager.audit()


def test_a_load_that_a_flush_overtook_publishes_nothing(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    lease = manager.begin_load(RED, tokens(range(8)), seconds=10)
    assert lease is not None
    manager.flush(RED)
    assert lease.blocks.size == 2, "who writes may go on"
    assert manager.finish_load(lease.lease_id, loaded_tokens=8)
    assert manager.lookup(RED, tokens(range(9))) == 0
    assert manager.stats().free == 8


def test_there_is_no_load_of_what_is_cached_or_does_not_fit(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    assert manager.begin_load(RED, tokens(range(11)), seconds=10) is None
    assert manager.begin_load(RED, tokens([]), seconds=10) is None
    run(manager, request(2, range(100, 120)))
    assert manager.begin_load(RED, tokens(range(24)), seconds=10) is None
    assert manager.stats().cached == 2
    assert manager.begin_load(RED, tokens(range(12)), seconds=10) is not None
    with pytest.raises(InvalidArgumentError, match="flat int32"):
        manager.begin_load(RED, np.arange(4), 10)  # type: ignore[arg-type]


def test_more_tokens_than_were_to_be_loaded_are_refused(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    lease = manager.begin_load(RED, tokens(range(8)), seconds=10)
    assert lease is not None
    for loaded_tokens in (9, -1):
        with pytest.raises(InvalidArgumentError, match=f"loaded_tokens is {loaded_tokens}"):
            manager.finish_load(lease.lease_id, loaded_tokens)
    assert manager.finish_load(lease.lease_id, loaded_tokens=8)


# --- stores ---


def test_what_is_stored_stays_until_the_lease_ends(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(17)))
    lease = manager.begin_store(RED, tokens(range(9)), seconds=10)
    assert lease is not None
    assert (lease.tokens, lease.blocks.tolist()) == (8, [1, 2])
    assert manager.stats().storing == 2
    serve(manager, request(2, range(100, 124)))
    assert manager.lookup(RED, tokens(range(9))) == 8
    assert manager.end_lease(lease.lease_id)
    assert not manager.end_lease(lease.lease_id)
    assert manager.begin_store(BLUE, tokens(range(9)), seconds=10) is None
    manager.audit()


def test_a_lost_store_lets_go_at_its_deadline(new_manager: NewManager) -> None:
    clock = Clock()
    manager = new_manager(9, 4, clock=clock)
    serve(manager, request(1, range(8)))
    assert manager.begin_store(RED, tokens(range(8)), seconds=10) is not None
    clock.now += 10
    assert manager.expire() == 1
    assert (manager.stats().storing, manager.stats().expired_stores) == (0, 1)
