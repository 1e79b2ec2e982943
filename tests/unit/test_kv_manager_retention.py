"""CacheManager: levels of retention, and how long they last."""

from __future__ import annotations

import pytest
from kv_cores import NewManager
from kv_manager_driver import RED, Clock, request, serve, tokens

from kvcache import CacheManager
from kvcache.errors import InvalidArgumentError


def cached(manager: CacheManager, first: int) -> bool:
    return manager.lookup(RED, tokens(range(first, first + 5))) == 4


def sweep(manager: CacheManager, blocks: int) -> None:
    """Requests of level 0 that take so many blocks one after the other."""
    for number in range(blocks):
        serve(manager, request(9, range(10_000 + 10 * number, 10_004 + 10 * number)))


def test_a_higher_level_is_kept_longer_at_equal_use(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    for first, level in ((0, 7), (10, 1), (20, 0), (30, 0)):
        serve(manager, request(1, range(first, first + 4), retention=level))
    sweep(manager, 50)
    assert [cached(manager, first) for first in (0, 10, 20, 30)] == [True, True, False, False]
    for number in range(7):  # of level 1: now these push the oldest of their own level out
        serve(manager, request(2, range(100 + 10 * number, 104 + 10 * number), retention=1))
    assert [cached(manager, first) for first in (0, 10)] == [True, False]


def test_a_level_is_over_when_its_time_is(new_manager: NewManager) -> None:
    clock = Clock()
    ttl = (0.0, 60.0, *[None] * 6)
    manager = new_manager(9, 4, retention_ttl_seconds=ttl, clock=clock)
    serve(manager, request(1, range(4), retention=1))
    serve(manager, request(2, range(10, 14), retention=2))
    clock.now += 50
    sweep(manager, 20)
    assert cached(manager, 0)
    clock.now += 11
    sweep(manager, 20)
    assert [cached(manager, first) for first in (0, 10)] == [False, True]


def test_use_starts_the_time_anew(new_manager: NewManager) -> None:
    clock = Clock()
    manager = new_manager(9, 4, retention_ttl_seconds=[0.0, *[60.0] * 7], clock=clock)
    serve(manager, request(1, range(4), retention=1))
    clock.now += 50
    serve(manager, request(1, range(5), retention=1))
    clock.now += 50
    sweep(manager, 20)
    assert cached(manager, 0)


def test_a_release_after_a_long_silence_is_not_taken_for_an_old_one(
    new_manager: NewManager,
) -> None:
    clock = Clock()
    manager = new_manager(9, 4, retention_ttl_seconds=[0.0, *[60.0] * 7], clock=clock)
    serve(manager, request(1, range(100, 104)))
    clock.now += 1000
    serve(manager, request(1, range(4), retention=1))
    clock.now += 1
    sweep(manager, 20)
    assert cached(manager, 0)


def test_expire_ends_levels_while_nothing_begins(new_manager: NewManager) -> None:
    clock = Clock()
    manager = new_manager(4, 4, retention_ttl_seconds=[0.0, *[10.0] * 7], clock=clock)
    serve(manager, request(1, range(4), retention=1))
    clock.now += 1
    serve(manager, request(2, range(10, 14)))
    serve(manager, request(3, range(20, 28), use_cache=False, publish=False))
    serve(manager, request(2, range(10, 14)))
    clock.now += 20
    manager.expire()
    serve(manager, request(4, range(30, 34)))
    serve(manager, request(5, range(40, 44)))
    assert not cached(manager, 0)


@pytest.mark.parametrize(
    "ttl",
    [
        [None] * 7,
        [None, *[5.0] * 7],
        [0.0, 3.0, 2.0, *[None] * 5],
        [-1.0, *[None] * 7],
        [float("nan"), *[None] * 7],
    ],
)
def test_times_to_live_that_cannot_be_are_refused(
    new_manager: NewManager, ttl: list[float | None]
) -> None:
    with pytest.raises(InvalidArgumentError, match="retention_ttl_seconds is"):
        new_manager(9, 4, retention_ttl_seconds=ttl)


def test_levels_that_do_not_exist_are_refused() -> None:
    for level in (-1, 8):
        with pytest.raises(InvalidArgumentError, match=f"retention is {level}"):
            request(1, range(4), retention=level)


@pytest.mark.parametrize("resumed", [True, False])
def test_a_preempted_sequence_that_comes_back_is_no_second_use(
    new_manager: NewManager, resumed: bool
) -> None:
    manager = new_manager(9, 4)
    sweep(manager, 8)
    serve(manager, request(1, range(4)))
    serve(manager, request(1, range(5), resumed=resumed))
    sweep(manager, 8)
    assert cached(manager, 0) == (not resumed)
