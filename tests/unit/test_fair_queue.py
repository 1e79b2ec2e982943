"""The order of admission: priorities, those that come back, and turns over tenants."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from engine_fakes import spec_of
from hypothesis import given
from hypothesis import strategies as st

from service.engine.fair_queue import WaitingQueue, cost_tokens
from service.engine.request import Sequence


def sequence(number: int, tenant: str = "a", tokens: int = 10, **fields: object) -> Sequence:
    """Number `number` in order of arrival, of `tokens` tokens in all."""
    fields.setdefault("arrival_seconds", float(number))
    fields.setdefault("expected_tokens", tokens - 1)
    return Sequence(spec_of(number, [1], tenant=tenant, **fields), order=number)  # type: ignore[arg-type]


def queue_of(*sequences: Sequence) -> WaitingQueue:
    queue = WaitingQueue()
    for each in sequences:
        queue.add(each)
    return queue


def ids(queue: WaitingQueue) -> list[int]:
    return [each.sequence_id for each in queue]


def test_order_is_by_priority_then_returners_then_arrival_whatever_came_first() -> None:
    preempted = sequence(5, arrival_seconds=9.0)
    preempted.preempted(now_seconds=10.0)
    in_order = [
        sequence(0, priority=1, arrival_seconds=8.0),
        sequence(4, arrival_seconds=7.0, resumed=True),
        preempted,
        Sequence(spec_of(1, [1], arrival_seconds=1.0), order=9),
        Sequence(spec_of(2, [1], arrival_seconds=2.0), order=1),
        Sequence(spec_of(3, [1], arrival_seconds=2.0), order=2),
        sequence(6, priority=-3, arrival_seconds=0.0),
    ]
    queue = queue_of(*random.Random(0).sample(in_order, len(in_order)))
    assert list(queue) == in_order
    assert queue.first(3) == in_order[:3]
    assert (len(queue), queue.preempted_count) == (7, 1)
    queue.remove(in_order[3])
    assert list(queue) == in_order[:3] + in_order[4:]
    queue.give_up(preempted)
    assert (len(queue), queue.preempted_count) == (5, 0)
    assert list(queue) == in_order[:2] + in_order[4:]


def test_one_who_is_not_there_cannot_be_taken_out() -> None:
    queue = queue_of(sequence(1))
    for take in (queue.remove, queue.give_up):
        for stranger in (sequence(2), sequence(3, priority=4), sequence(4, resumed=True)):
            with pytest.raises(ValueError, match="not in list"):
                take(stranger)
    assert ids(queue) == [1]


def test_tenants_take_turns_however_many_one_of_them_sent() -> None:
    queue = queue_of(*(sequence(n, "flood") for n in range(6)), sequence(6, "b"), sequence(7, "b"))
    assert ids(queue) == [0, 6, 1, 7, 2, 3, 4, 5]


def test_turns_are_measured_in_tokens() -> None:
    long = [sequence(n, "long", tokens=30) for n in range(3)]
    short = [sequence(n, "short", tokens=10) for n in range(3, 9)]
    assert ids(queue_of(*long, *short)) == [0, 3, 4, 5, 1, 6, 7, 8, 2]


def test_without_an_expectation_the_bound_counts() -> None:
    assert cost_tokens(Sequence(spec_of(1, [1, 2], max_tokens=30), order=1)) == 32


def test_nobody_saves_turns_up() -> None:
    queue = WaitingQueue()
    for number in range(100):  # an engine that `a` had for itself
        queue.add(sequence(number, "a"))
        queue.remove(next(iter(queue)))
    late = [sequence(n, "b") for n in range(100, 104)] + [sequence(n, "a") for n in range(104, 108)]
    for each in late:
        queue.add(each)
    assert ids(queue) == [100, 104, 101, 105, 102, 106, 103, 107]


def test_who_is_given_up_is_not_charged() -> None:
    given_up, kept = sequence(0, "a", tokens=1000), sequence(1, "a")
    queue = queue_of(given_up, sequence(2, "b"), kept, sequence(3, "b"))
    queue.give_up(given_up)
    assert ids(queue) == [1, 2, 3]


def test_who_comes_back_is_not_charged_again() -> None:
    queue = queue_of(*(sequence(n, "a") for n in (0, 1)), *(sequence(n, "b") for n in (2, 3)))
    first = next(iter(queue))
    queue.remove(first)
    first.preempted(now_seconds=1.0)
    queue.add(first)
    resumed = sequence(9, "b", resumed=True)
    queue.add(resumed)
    assert ids(queue) == [0, 9, 2, 1, 3]
    queue.remove(first)
    queue.remove(resumed)
    assert ids(queue) == [2, 1, 3]


def test_one_that_is_passed_over_keeps_its_turn() -> None:
    """Others go first while it does not fit, at their own charge."""
    queue = queue_of(sequence(0, "a"), *(sequence(n, "b") for n in range(1, 5)))
    for expected in (1, 2, 3):
        head, passing = queue.first(2)
        assert (head.sequence_id, passing.sequence_id) == (0, expected)
        queue.remove(passing)


def test_a_pass_over_the_queue_sees_it_as_it_was() -> None:
    first, second = sequence(0, "a", priority=1), sequence(1, "a")
    queue = queue_of(first, second)
    seen = iter(queue)
    assert next(seen) is first
    victim = sequence(2, "b")
    victim.preempted(now_seconds=1.0)
    queue.add(victim)
    queue.remove(second)
    assert list(seen) == [second]


@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(2, 50)), min_size=1, max_size=40
    )
)
def test_backlogged_tenants_never_differ_by_more_than_a_sequence_each(
    arrivals: list[tuple[str, int]],
) -> None:
    """Goyal, Vin and Cheng, theorem 1: |W_f - W_g| <= l_f + l_g while both have work to do."""
    sequences = [sequence(n, tenant, tokens) for n, (tenant, tokens) in enumerate(arrivals)]
    longest = {t: max((n for s, n in arrivals if s == t), default=0) for t in "abc"}
    queue = queue_of(*sequences)
    forecast = ids(queue)
    served: Counter[str] = Counter()
    began = []
    while len(queue):
        left = {each.spec.tenant for each in queue}
        for f in left:
            for g in left:
                assert abs(served[f] - served[g]) <= longest[f] + longest[g]
        head = next(iter(queue))
        queue.remove(head)
        began.append(head.sequence_id)
        served[head.spec.tenant] += cost_tokens(head)
    assert began == forecast, "the order of a snapshot is that of service"
    for tenant in "abc":
        own = [n for n in began if arrivals[n][0] == tenant]
        assert own == sorted(own), "FIFO within a tenant"


@given(numbers=st.permutations(range(12)))
def test_one_tenant_alone_is_served_in_order_of_arrival(numbers: list[int]) -> None:
    assert ids(queue_of(*(sequence(n, "a", tokens=2 + n % 5) for n in numbers))) == list(range(12))


def test_ever_new_tenants_do_not_keep_an_old_one_waiting() -> None:
    queue = queue_of(*(sequence(n, "old") for n in range(3)))
    began = []
    for number in range(3, 60):
        queue.add(sequence(number, f"tenant {number}"))
        head = next(iter(queue))
        queue.remove(head)
        began.append(head.sequence_id)
    assert began.index(2) < 15


def test_tenants_that_are_gone_are_forgotten() -> None:
    queue = WaitingQueue()
    for number in range(2000):
        queue.add(sequence(number, f"tenant {number}"))
        queue.remove(next(iter(queue)))
    (level,) = queue._levels.values()
    assert len(level.newcomers._tags) < 100
