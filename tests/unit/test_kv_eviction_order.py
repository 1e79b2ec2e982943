"""The choice of a victim on plain data, and the rings that it is made from."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest

from kvcache.core.eviction import (
    LEVELS,
    EvictionOrder,
    EvictionRule,
    Front,
    RingKey,
    Side,
    choose_ring,
)
from kvcache.core.python_core import PythonCore
from kvcache.errors import ConservationError, InvalidArgumentError

RULE = EvictionRule(2, 25)
NEVER = (-1,) * LEVELS


def front(
    idle: int, *, group: int = 0, level: int = 0, reused: bool = False, blocks: int = 10
) -> Front:
    """A ring at tick 100; its front is named after its place in the call."""
    return Front(RingKey(group, level, reused), 0, 100 - idle, blocks)


def chosen(*fronts: Front, expiry: Sequence[int] = NEVER, rule: EvictionRule = RULE) -> int | None:
    """The place of the front that is chosen, whatever the order of the rings."""
    named = [front._replace(block=place) for place, front in enumerate(fronts)]
    found = {choose_ring(some, 100, expiry, rule) for some in itertools.permutations(named)}
    assert len(found) == 1
    choice = found.pop()
    return None if choice is None else choice.block


@pytest.mark.parametrize(
    ("idle", "once_blocks", "reused_blocks", "takes_reused"),
    [
        (21, 100, 26, True),
        (20, 100, 26, False),  # not more than twice as long
        (21, 100, 25, False),  # protected
        (21, 5, 6, True),  # not more are protected than were used once
        (21, 5, 5, False),
    ],
)
def test_reused_blocks_go_when_they_are_stale_and_not_protected(
    idle: int, once_blocks: int, reused_blocks: int, *, takes_reused: bool
) -> None:
    once, reused = Side(10, once_blocks), Side(idle, reused_blocks)
    assert RULE.takes_reused(once, reused) == takes_reused
    fronts = front(10, blocks=once_blocks), front(idle, reused=True, blocks=reused_blocks)
    assert chosen(*fronts) == takes_reused


def test_plain_lru_is_the_rule_without_reused_blocks() -> None:
    order = EvictionOrder(4, EvictionRule.of("lru", 3))
    for block in (2, 1):
        order.mark_reused(block)
        order.add(block, 0)
        order.now += 9
    assert not order.is_reused(1)
    assert order.victim([0]) == 2


def test_nothing_cached_is_no_victim() -> None:
    assert chosen() is None
    assert EvictionOrder(4, RULE).victim(range(32)) is None


def test_the_lowest_level_goes_first_however_fresh_it_is() -> None:
    assert chosen(front(50, level=2), front(0, level=1), front(90, level=7)) == 1
    assert chosen(front(90, level=1), front(0, reused=True, blocks=1)) == 1


def test_expired_blocks_rank_as_the_lowest_level() -> None:
    expiry = (-1, 60, 50, 50, -1, -1, -1, -1)
    assert chosen(front(50, level=2), front(45, level=1), expiry=expiry) == 0
    assert chosen(front(49, level=2), front(39, level=1), expiry=expiry) == 1
    assert chosen(front(50, level=2), front(0), front(40, level=1), expiry=expiry) == 0


def test_of_equally_idle_blocks_those_of_the_lowest_class_go_first() -> None:
    expiry = (-1, 99, 99, -1, -1, -1, -1, -1)
    assert chosen(front(9, group=1), front(9, level=2), front(9, level=1), expiry=expiry) == 2
    assert chosen(front(9, group=2), front(9, group=1), front(8)) == 1


def test_the_reused_blocks_of_all_classes_are_protected_together() -> None:
    scan = front(1, group=1, blocks=75)
    assert chosen(front(90, reused=True, blocks=25), scan) == 1
    two = front(90, reused=True, blocks=13), front(80, group=2, reused=True, blocks=13)
    assert chosen(*two, scan) == 0
    assert chosen(*two, front(1, level=1, blocks=75)) == 0, "another rank protects nothing"


def test_what_leads_to_protected_blocks_is_not_taken_by_way_of_its_level() -> None:
    """A path: its head was kept at level 1 and has expired, its tail is a reused leaf of level 0.

    Protected are the reused blocks of both levels: class by class, the head would be the only
    candidate of its class, idle for longer than the fresh block that level 0 offers.
    """
    head = front(80, level=1, reused=True, blocks=1)
    tail = front(80, reused=True, blocks=1)
    fresh = front(2, blocks=5)
    expiry = (-1, 50, -1, -1, -1, -1, -1, -1)
    assert chosen(head, tail, fresh, expiry=expiry) == 2


# --- the rings ---


def order_of(*blocks: int, groups: Sequence[int] = ()) -> EvictionOrder:
    """Blocks used once, released one after the other."""
    order = EvictionOrder(20, RULE)
    for block, group in itertools.zip_longest(blocks, groups, fillvalue=0):
        order.now += 1
        order.add(block, group)
    return order


def test_blocks_that_come_back_go_to_the_end() -> None:
    order = order_of(3, 1, 2)
    assert (order.remove(3), order.victim([0])) == (1, 1)
    order.add(3, 0)
    assert [block for block, _ in order.blocks()] == [1, 2, 3]
    order.audit()


def test_a_victim_is_of_the_groups_that_may_be_taken_from() -> None:
    order = order_of(3, 1, 2, groups=(5, 6, 5))
    assert [order.victim(some) for some in ([5, 6], [6], [7])] == [3, 1, None]


def test_a_level_is_raised_and_begins_anew() -> None:
    order = EvictionOrder(4, RULE)
    order.allocated(1, 3)
    for level, expected in ((2, 3), (5, 5)):
        order.raise_level(1, level)
        assert order.level(1) == expected
    order.mark_reused(1)
    order.allocated(1, 0)
    assert (order.level(1), order.is_reused(1)) == (0, False)


def test_expiries_rise_and_those_of_higher_levels_stay_behind() -> None:
    order = EvictionOrder(4, RULE)
    order.now = 9
    order.set_expiry(1, 9)
    order.set_expiry(2, 5)
    for level, tick, message in (
        (0, 5, "level is 0, but must be from 1 to 7"),
        (8, 5, "level is 8, but must be from 1 to 7"),
        (1, 10, "tick is 10, but must be from 9 to 9"),
        (2, 4, "tick is 4, but must be from 5 to 9"),
        (2, 10, "tick is 10, but must be from 5 to 9"),
        (3, 6, "tick is 6, but must be from -1 to 5"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            order.set_expiry(level, tick)
    order.set_expiry(2, 5)


def test_moved_blocks_keep_their_place_and_their_worth() -> None:
    order = EvictionOrder(20, RULE)
    for block in (11, 1, 12):
        order.allocated(block, 4)
        order.mark_reused(block)
        order.add(block, 0)
    order.resize(8, {11: 2, 12: 3})
    assert [block for block, _ in order.blocks()] == [2, 1, 3]
    assert [(order.level(block), order.is_reused(block)) for block in (2, 3)] == [(4, True)] * 2
    order.audit()
    order.resize(9, {})
    order.allocated(8, 1)
    order.audit()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda order: order.raise_level(1, 2), "block 1 is in the ring of another class"),
        (lambda order: order._ring_of.pop(1), "the eviction rings are not those"),
        (lambda order: setattr(order, "now", 1), "not in the order of releases"),
    ],
)
def test_an_audit_finds_a_broken_ring(
    break_it: Callable[[EvictionOrder], None], message: str
) -> None:
    order = order_of(3, 1, 2)
    order.audit()
    break_it(order)
    with pytest.raises(ConservationError, match=message):
        order.audit()


def lines_executed(function: Callable[[], object]) -> int:
    """Python lines run inside kvcache: a cost that does not depend on the machine."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if "kvcache" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(previous)
    return count


def filled(blocks: int) -> PythonCore:
    core = PythonCore(blocks + 1, 1, *RULE)
    for number in range(blocks):
        core.begin(number, b"", np.array([number], np.int32), True, (0, 0, 0), False, 0, 0, 0)
        core.commit(number, 1)
        core.release(number)
    return core


@pytest.mark.slow
def test_the_cost_of_an_eviction_does_not_depend_on_the_number_of_blocks() -> None:
    small, large = filled(500), filled(10_000)
    cost = lines_executed(lambda: small.evict(1))
    assert 0 < cost < 150
    assert lines_executed(lambda: large.evict(1)) == cost
