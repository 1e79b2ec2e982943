"""Who waits before whom, who gives way, and who has less than its share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.front.fair_queue import WaitingRequests
from service.front.forecast import Demand
from service.front.occupancy import Occupancy

ONE = Demand(sequences=1, prompt_tokens=10.0, output_tokens=5.0)


def waiting_of(*entries: tuple[str, str, int]) -> WaitingRequests[str]:
    """Of (name, tenant, priority)."""
    waiting: WaitingRequests[str] = WaitingRequests()
    for name, tenant, priority in entries:
        waiting.add(name, tenant, priority, ONE)
    return waiting


def flood(count: int, tenant: str = "flood", priority: int = 0) -> list[tuple[str, str, int]]:
    return [(f"{tenant} {n}", tenant, priority) for n in range(count)]


def test_a_tenant_comes_after_its_own_and_as_many_of_each_other() -> None:
    waiting = waiting_of(*flood(10), *flood(2, "b"), *flood(3, "high", 5), *flood(4, "low", -1))
    assert waiting.ahead_of("new", 0, 1) == (1 + 1 + 3, pytest.approx(50.0))
    assert waiting.ahead_of("b", 0, 1) == (2 + 3 + 3, pytest.approx(80.0))
    assert waiting.ahead_of("flood", 0, 1) == (10 + 2 + 3, pytest.approx(150.0))
    assert waiting.ahead_of("flood", 5, 2) == (2, pytest.approx(20.0))


def test_the_newest_of_the_longest_queue_gives_way() -> None:
    waiting = waiting_of(*flood(5), *flood(2, "b"))
    assert waiting.gives_way("new", 0) == "flood 4"
    assert waiting.gives_way("b", 0) == "flood 4"
    assert waiting.gives_way("flood", 0) is None


def test_nobody_gives_way_for_less_than_a_fairer_share() -> None:
    waiting = waiting_of(*flood(3), *flood(2, "b"))
    assert waiting.gives_way("b", 0) is None, "it would only be the other way round"
    assert waiting.gives_way("new", 0) == "flood 2"
    assert waiting_of(*flood(1), *flood(1, "b")).gives_way("new", 0) is None


def test_a_higher_priority_does_not_give_way_to_a_lower_one() -> None:
    waiting = waiting_of(*flood(5, priority=3))
    assert waiting.gives_way("new", 2) is None
    assert waiting.gives_way("new", 3) == "flood 4"
    waiting.add("flood low", "flood", 1, ONE)
    waiting.add("flood lower", "flood", 0, ONE)
    assert waiting.gives_way("new", 3) == "flood lower"


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=40),
    limit=st.integers(1, 10),
)
def test_a_full_queue_never_leaves_a_tenant_out_that_others_have_two_more_than(
    steps: list[tuple[str, int]], limit: int
) -> None:
    waiting: WaitingRequests[int] = WaitingRequests()
    tenants: dict[int, str] = {}

    def count(tenant: str) -> int:
        return sum(tenants[item] == tenant for item in waiting)

    for number, (tenant, _) in enumerate(steps):
        tenants[number] = tenant
        if len(waiting) >= limit:
            giving_way = waiting.gives_way(tenant, 0)
            if giving_way is None:
                assert all(count(other) < count(tenant) + 2 for other in "abc")
                continue
            before = count(tenants[giving_way])
            assert before == max(map(count, "abc"))
            waiting.remove(giving_way)
        waiting.add(number, tenant, 0, ONE)
        assert len(waiting) <= limit


def test_what_has_begun_is_counted_until_the_engine_is_done_with_it() -> None:
    occupancy: Occupancy[str] = Occupancy()
    occupancy.arrived("x", "a", 0, Demand(3, 100.0, 5.0))
    assert occupancy.load(8).is_idle
    assert occupancy.load_before(8, "a", 0, 1).ahead == 3
    assert occupancy.began("x")
    assert not occupancy.began("x")
    load = occupancy.load_before(8, "a", 0, 1)
    assert (load.running, load.ahead, load.unread_prompt_tokens) == (3, 0, 100.0)
    occupancy.spoke("x")
    occupancy.spoke("x")
    assert occupancy.load(8).unread_prompt_tokens == 0
    occupancy.left("x")
    occupancy.left("x")
    assert occupancy.load(8).is_idle
    occupancy.arrived("y", "a", 0, ONE)
    occupancy.left("y")
    assert len(occupancy.waiting) == 0


def test_one_that_leaves_during_its_prompt_takes_it_along() -> None:
    occupancy: Occupancy[str] = Occupancy()
    occupancy.arrived("x", "a", 0, ONE)
    occupancy.began("x")
    occupancy.left("x")
    assert occupancy.load(8).unread_prompt_tokens == 0


def test_a_share_is_what_a_tenant_has_on_average_the_newcomer_counted() -> None:
    occupancy: Occupancy[str] = Occupancy()
    assert not occupancy.is_below_share("a", 1), "alone it has all there is"
    for number in range(4):
        occupancy.arrived(f"a{number}", "a", 0, ONE)
    assert not occupancy.is_below_share("a", 1)
    assert occupancy.is_below_share("b", 1)
    assert occupancy.is_below_share("b", 3)
    assert not occupancy.is_below_share("b", 4)
    for number in range(4):
        occupancy.left(f"a{number}")
    assert not occupancy.is_below_share("b", 1)
