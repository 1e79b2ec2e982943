"""Groups and retention levels, of each core: floors, quotas, what is kept longer."""

from __future__ import annotations

import pytest
from kv_core_driver import NewCore

from kvcache.core import HolderKind
from kvcache.errors import (
    InvalidArgumentError,
    OutOfBlocksError,
)

PIN, STORE, EXPECT = HolderKind.PIN, HolderKind.STORE, HolderKind.EXPECT


def test_a_namespace_belongs_to_one_group_at_a_time(new_core: NewCore) -> None:
    cache = new_core(6)
    assert cache.core.namespace_group(b"red") == -1
    cache.use([1, 1, 2], namespace=b"red", group=3)
    assert cache.core.namespace_group(b"red") == 3
    error = cache.refused(InvalidArgumentError, lambda: cache.begin([7], namespace=b"red", group=0))
    assert str(error) == "group is 0, but must be 3, the group of the namespace"
    cache.core.flush(b"red")
    assert cache.core.namespace_group(b"red") == -1
    cache.use([7], namespace=b"red", group=0)


def test_others_leave_a_group_its_floor(new_core: NewCore) -> None:
    cache = new_core(11)
    cache.core.set_group(1, 4, -1)
    cache.use([1, 1, 2, 2, 3, 3], namespace=b"1", group=1)
    assert cache.core.group_counts(1) == (0, 3)
    assert (cache.core.available_blocks(0), cache.core.available_blocks(1)) == (6, 10)
    error = cache.refused(OutOfBlocksError, lambda: cache.begin(range(14)))
    assert vars(error) == {"wanted_blocks": 7, "free_blocks": 6}
    cache.use(range(12))
    cache.use(range(100, 112))
    assert cache.cached([1, 1, 2, 2, 3, 3], b"1") == 3, "the older ones, but within the floor"
    cache.use(range(200, 214), namespace=b"1", group=1)
    assert cache.core.group_counts(1) == (0, 7), "of a floor of 4: it borrows"
    assert cache.core.group_counts(0) == (0, 3)
    cache.use(range(300, 312))
    assert cache.core.group_counts(1) == (0, 4), "what was borrowed goes back"


def test_a_pin_does_not_take_what_is_left_for_a_floor(new_core: NewCore) -> None:
    cache = new_core(5)
    cache.core.set_group(1, 2, -1)
    cache.use([1, 1])
    cache.use([2, 2])
    running = cache.start([7, 7])
    pin = cache.keep([1, 1], PIN)
    error = cache.refused(OutOfBlocksError, lambda: cache.keep([2, 2], PIN))
    assert vars(error) == {"wanted_blocks": 0, "free_blocks": 0}
    cache.keep([2, 2], EXPECT)
    cache.keep([1, 1], STORE)
    cache.core.release(running)
    cache.keep([2, 2], PIN)
    cache.core.release(pin)


def test_a_group_makes_room_within_its_quota_from_its_own_blocks(new_core: NewCore) -> None:
    cache = new_core(20)
    cache.core.set_group(1, 0, 3)
    cache.use([5, 5, 6, 6])
    cache.use([1, 1, 2, 2], namespace=b"1", group=1)
    running = cache.start([7, 7, 8, 8], namespace=b"1", group=1)
    assert cache.core.group_counts(1) == (2, 1)
    assert cache.cached([1, 1, 2, 2], b"1") == 1
    assert cache.core.available_blocks(1) == 1
    assert cache.core.append(running, 9) == 0
    assert cache.core.group_counts(1) == (3, 0)
    assert cache.core.append(running, 9) == 0
    assert cache.core.append(running, 10) == 1, "it may not have a fourth block"
    cache.refused(OutOfBlocksError, lambda: cache.begin([3], namespace=b"1", group=1))
    assert cache.cached([5, 5, 6, 6]) == 2
    cache.core.set_group(1, 0, -1)
    assert cache.core.append(running, 10) == 0


def test_a_lower_quota_waits_until_blocks_are_needed(new_core: NewCore) -> None:
    cache = new_core(20)
    cache.use([1, 1, 2, 2, 3, 3, 4, 4], namespace=b"1", group=1)
    cache.core.set_group(1, 0, 2)
    cache.keep([1, 1], PIN, namespace=b"1", group=1)
    assert cache.core.group_counts(1) == (1, 3), "a pin needs no new block"
    running = cache.start([9], namespace=b"1", group=1)
    assert cache.core.group_counts(1) == (2, 0)
    assert cache.core.append(running, 9) == 0
    assert cache.core.append(running, 9) == 1


def test_limits_of_groups_are_checked(new_core: NewCore) -> None:
    cache = new_core(6)
    for arguments, message in (
        ((32, 0, 0), "group is 32, but must be from 0 to 31"),
        ((1, -1, 0), "floor_blocks is -1, but must be at least 0"),
        ((1, 0, -2), "quota_blocks is -2, but must be at least 0, or -1 for none"),
    ):
        call = lambda arguments=arguments: cache.core.set_group(*arguments)  # noqa: E731
        assert str(cache.refused(InvalidArgumentError, call)) == message
    for lookup in (cache.core.available_blocks, cache.core.group_counts):
        with pytest.raises(InvalidArgumentError, match="group is -1, but must be from 0 to 31"):
            lookup(-1)


def test_a_higher_level_is_kept_longer_until_it_expires(new_core: NewCore) -> None:
    cache = new_core(4)
    cache.use([1, 1], level=2)
    cache.use([2, 2], level=1)
    cache.use([3, 3])
    cache.use([4, 4])
    assert [cache.cached([n, n]) for n in (1, 2, 3, 4)] == [1, 1, 0, 1]
    cache.core.set_expiry(1, 2)
    cache.core.set_expiry(2, 1)
    cache.use([5, 5])
    assert [cache.cached([n, n]) for n in (1, 2, 4, 5)] == [0, 1, 1, 1]
    cache.use([6, 6])
    assert [cache.cached([n, n]) for n in (2, 4, 5, 6)] == [0, 1, 1, 1]


def test_a_holder_raises_the_level_of_its_whole_path(new_core: NewCore) -> None:
    cache = new_core(6)
    cache.use([1, 1, 2, 2, 3, 3])
    cache.core.release(cache.keep([1, 1, 2, 2], PIN, level=4))
    computed = cache.begin([5, 5], level=0)
    cache.core.commit(computed, 2)
    again = cache.begin([5, 5], level=3, use_cache=False)
    cache.core.commit(again, 2)
    assert cache.table(again) == cache.table(computed)
    for holder in (again, computed):
        cache.core.release(holder)
    assert cache.core.evict(1) == 1
    assert cache.cached([1, 1, 2, 2, 3, 3]) == 2
    assert cache.core.evict(1) == 1
    assert (cache.cached([5, 5]), cache.cached([1, 1, 2, 2])) == (0, 2)


def test_what_leads_to_a_protected_block_stays_when_its_level_has_expired(
    new_core: NewCore,
) -> None:
    """The head of a reused path is the only block of its level, the tail is protected by others."""
    cache = new_core(13)
    path = [1, 1, 2, 2]
    for _ in range(2):
        cache.use([*path, 0])
    cache.core.release(cache.keep([1, 1], PIN, level=1))
    for token in [7, 8, 9] * 4:
        cache.use([token, token, 0], is_reuse=False)
    cache.core.set_expiry(1, cache.core.ticks)
    assert cache.core.evict(1) == 1
    assert (cache.cached(path), cache.cached([7, 7])) == (2, 0)
    assert cache.core.evict(9) == 4


def test_the_expiry_of_a_level_is_checked(new_core: NewCore) -> None:
    cache = new_core(4)
    for _ in range(3):
        cache.use([1])
    for arguments, message in (
        ((0, 0), "level is 0, but must be from 1 to 7"),
        ((1, 4), "tick is 4, but must be from -1 to 3"),
        ((2, 0), "tick is 0, but must be from -1 to -1"),
    ):
        call = lambda arguments=arguments: cache.core.set_expiry(*arguments)  # noqa: E731
        assert str(cache.refused(InvalidArgumentError, call)) == message


def test_eviction_on_demand_takes_what_there_is(new_core: NewCore) -> None:
    cache = new_core(9)
    cache.start([7, 7])
    cache.use([1, 1, 2, 2], namespace=b"1", group=1)
    cache.core.set_group(1, 7, -1)
    cache.refused(InvalidArgumentError, lambda: cache.core.evict(-1))
    assert cache.core.evict(1) == 1
    assert cache.core.evict(9) == 1, "floors do not count when memory is short"
    assert cache.counts().evicted == 2
