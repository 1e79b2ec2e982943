"""Whose blocks are taken back, and how: the preemption planner."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from kvcache.errors import InvalidArgumentError
from kvcache.preemption import (
    Preemption,
    PreemptionMode,
    PreemptionPlan,
    VictimCandidate,
    plan_preemption,
)
from kvcache.rates import PreemptionRates, RateMeter

BLOCK_TOKENS = 16
UNMEASURED = PreemptionRates(BLOCK_TOKENS)


def measured(
    *, prefill: float = 1000.0, copy: float = 1e6, stall_seconds: float = 0.0
) -> PreemptionRates:
    return PreemptionRates(
        BLOCK_TOKENS,
        block_bytes=1000,
        prefill_tokens_per_second=prefill,
        copy_bytes_per_second=copy,
        stall_seconds=stall_seconds,
    )


SLOW_COPY = measured(copy=1.0)


def candidate(
    sequence_id: int,
    *,
    computed_tokens: int = 100,
    shared_blocks: int = 0,
    priority: int = 0,
    progressed: bool = True,
    reusable: bool = True,
) -> VictimCandidate:
    """A decoding sequence: its newest token has a slot and is not computed."""
    blocks = -(-(computed_tokens + 1) // BLOCK_TOKENS)
    return VictimCandidate(
        sequence_id=sequence_id,
        priority=priority,
        admitted_serial=sequence_id,
        progressed=progressed,
        blocks=blocks,
        exclusive_blocks=blocks - shared_blocks,
        computed_tokens=computed_tokens,
        reusable=reusable,
    )


def planned(
    *candidates: VictimCandidate,
    short_blocks: int = 1,
    rates: PreemptionRates = UNMEASURED,
    host_free_blocks: int = 0,
    needy_id: int | None = None,
    all_or_nothing: bool = False,
) -> PreemptionPlan | None:
    """The plan, which does not depend on the order of the candidates."""
    answers = {
        plan_preemption(
            order,
            short_blocks,
            rates,
            host_free_blocks=host_free_blocks,
            needy_id=needy_id,
            all_or_nothing=all_or_nothing,
        )
        for order in itertools.permutations(candidates)
    }
    (plan,) = answers
    return plan


def victims(plan: PreemptionPlan | None) -> list[int]:
    assert plan is not None
    return [victim.sequence_id for victim in plan.victims]


def only_victim(plan: PreemptionPlan | None) -> Preemption:
    assert plan is not None
    (victim,) = plan.victims
    return victim


class TestWhoIsTaken:
    """Priority, cost, order of admission, and who is spared."""

    def test_a_lone_sequence_is_no_victim_of_its_own_need(self) -> None:
        assert planned() is None
        assert planned(candidate(1), needy_id=1) is None
        assert victims(planned(candidate(2), needy_id=1)) == [2]

    def test_the_lowest_priority_goes_first_whatever_it_costs(self) -> None:
        cheap = candidate(1, priority=1, computed_tokens=16)
        assert victims(planned(cheap, candidate(2), candidate(3))) == [3]
        assert victims(planned(candidate(1), candidate(2, computed_tokens=111), cheap)) == [1]

    def test_of_one_priority_the_one_that_loses_the_fewest_tokens_goes(self) -> None:
        # Their last blocks hold 4, 1 and 15 computed tokens.
        trio = [candidate(1, computed_tokens=100), candidate(2, computed_tokens=97)]
        trio.append(candidate(3, computed_tokens=111))
        victim = only_victim(planned(*trio))
        assert (victim.sequence_id, victim.cost_seconds) == (2, 1.0)

    def test_of_equals_the_last_admitted_goes(self) -> None:
        assert victims(planned(candidate(1), candidate(2), candidate(3))) == [3]

    def test_the_needy_one_may_be_its_own_victim(self) -> None:
        other = candidate(1, computed_tokens=111)
        assert victims(planned(other, candidate(2, computed_tokens=97), needy_id=2)) == [2]

    def test_a_sequence_that_has_not_progressed_is_spared(self) -> None:
        fresh = candidate(3, computed_tokens=97, priority=-5, progressed=False)
        assert victims(planned(candidate(1), candidate(2), fresh, needy_id=1)) == [2]

    def test_if_none_has_progressed_the_last_admitted_goes_for_a_running_one_only(self) -> None:
        trio = [candidate(i, priority=-i, progressed=False) for i in (1, 2, 3)]
        assert victims(planned(*trio, needy_id=1)) == [3]
        assert planned(*trio, all_or_nothing=True) is None

    def test_a_sequence_that_shares_all_its_blocks_is_spared_where_others_have_some(self) -> None:
        sharer = candidate(3, computed_tokens=95, shared_blocks=6)
        assert sharer.exclusive_blocks == 0
        assert victims(planned(candidate(1), candidate(2), sharer)) == [2]

    def test_sharers_are_taken_one_by_one_where_nobody_has_blocks_of_its_own(self) -> None:
        sharers = [candidate(i, computed_tokens=95, shared_blocks=6) for i in (2, 3)]
        victim = only_victim(planned(*sharers, needy_id=1))
        assert (victim.sequence_id, victim.freed_blocks) == (3, 0)
        assert planned(*sharers, all_or_nothing=True) is None

    def test_a_waiting_one_gets_all_that_it_lacks_or_nobody_is_taken(self) -> None:
        pair = [candidate(1, computed_tokens=40), candidate(2, computed_tokens=40)]
        assert planned(*pair, short_blocks=7, all_or_nothing=True) is None
        plan = planned(*pair, short_blocks=6, all_or_nothing=True)
        assert sorted(victims(plan)) == [1, 2]


class TestHowItIsTaken:
    """Trim, swap or recompute."""

    def test_a_trim_takes_only_the_last_blocks_that_are_wanted(self) -> None:
        victim = only_victim(planned(candidate(1, computed_tokens=100), short_blocks=3))
        assert victim.mode is PreemptionMode.TRIM
        assert (victim.keep_blocks, victim.freed_blocks) == (4, 3)
        assert victim.cost_seconds == 100 - 4 * BLOCK_TOKENS

    def test_blocks_without_computed_tokens_are_not_kept(self) -> None:
        prefilling = VictimCandidate(1, 0, 1, True, 10, 10, computed_tokens=40, reusable=True)
        victim = only_victim(planned(prefilling))
        assert (victim.keep_blocks, victim.freed_blocks) == (2, 8)
        assert victim.cost_seconds == 40 - 2 * BLOCK_TOKENS

    def test_what_cannot_be_hit_again_is_computed_again_whole(self) -> None:
        victim = only_victim(planned(candidate(1, reusable=False), rates=measured()))
        assert victim.mode is PreemptionMode.RECOMPUTE
        assert (victim.keep_blocks, victim.freed_blocks) == (0, 7)
        assert victim.cost_seconds == pytest.approx(0.1)

    def test_shared_blocks_are_neither_freed_nor_computed_again(self) -> None:
        victim = only_victim(planned(candidate(1, shared_blocks=4), short_blocks=3))
        assert victim.mode is PreemptionMode.RECOMPUTE
        assert (victim.freed_blocks, victim.cost_seconds) == (3, 100 - 4 * BLOCK_TOKENS)

    def test_only_a_place_in_the_batch_costs_no_full_block(self) -> None:
        victim = only_victim(planned(candidate(1), candidate(2, priority=1), short_blocks=0))
        assert (victim.sequence_id, victim.keep_blocks, victim.freed_blocks) == (1, 6, 1)

    def test_a_swap_is_taken_where_the_copies_are_faster(self) -> None:
        arguments = {"short_blocks": 7, "host_free_blocks": 6}
        victim = only_victim(planned(candidate(1), rates=measured(copy=1e6), **arguments))
        assert victim.mode is PreemptionMode.SWAP
        assert (victim.host_blocks, victim.freed_blocks) == (6, 7)
        # Six blocks there and back, and the four tokens of the last block computed again.
        assert victim.cost_seconds == pytest.approx(2 * 6 * 1000 / 1e6 + 4 / 1000)
        slow = only_victim(planned(candidate(1), rates=SLOW_COPY, **arguments))
        assert slow.mode is PreemptionMode.RECOMPUTE

    def test_shared_blocks_are_not_swapped(self) -> None:
        sharer = candidate(1, shared_blocks=2)
        plan = planned(sharer, short_blocks=5, rates=measured(copy=1e6), host_free_blocks=6)
        victim = only_victim(plan)
        assert (victim.mode, victim.host_blocks) == (PreemptionMode.SWAP, 4)
        assert victim.cost_seconds == pytest.approx(2 * 4 * 1000 / 1e6 + 4 / 1000)

    def test_a_trim_of_little_beats_a_swap_of_all(self) -> None:
        victim = only_victim(planned(candidate(1), rates=measured(), host_free_blocks=100))
        assert victim.mode is PreemptionMode.TRIM

    @pytest.mark.parametrize(
        "rates",
        [UNMEASURED, PreemptionRates(BLOCK_TOKENS, 1000, copy_bytes_per_second=1e9)],
        ids=["nothing measured", "only copies measured"],
    )
    def test_nothing_is_swapped_before_both_speeds_are_known(self, rates: PreemptionRates) -> None:
        plan = planned(candidate(1), short_blocks=7, rates=rates, host_free_blocks=100)
        assert only_victim(plan).mode is PreemptionMode.RECOMPUTE

    def test_a_host_without_room_for_all_full_blocks_leads_to_recompute(self) -> None:
        plan = planned(candidate(1), short_blocks=7, rates=measured(), host_free_blocks=5)
        assert only_victim(plan).mode is PreemptionMode.RECOMPUTE

    def test_the_room_of_the_host_is_shared_by_the_victims_of_a_plan(self) -> None:
        pair = [candidate(1), candidate(2)]
        plan = planned(*pair, short_blocks=14, rates=measured(), host_free_blocks=11)
        assert plan is not None
        assert sorted(victim.mode.value for victim in plan.victims) == ["recompute", "swap"]


class TestSeveralVictims:
    """When one does not have enough."""

    def test_no_victim_is_taken_that_turns_out_not_to_be_needed(self) -> None:
        small = [candidate(i, computed_tokens=20) for i in (1, 2)]  # two blocks each
        big = candidate(3, computed_tokens=100, priority=1)
        plan = planned(*small, big, short_blocks=6)
        assert victims(plan) == [3]

    def test_a_higher_class_gives_no_victim_while_the_lower_has_enough(self) -> None:
        low = [candidate(i, computed_tokens=40, priority=-1) for i in (1, 2)]
        plan = planned(*low, candidate(3, computed_tokens=97), short_blocks=4)
        assert sorted(victims(plan)) == [1, 2]

    def test_the_last_of_several_gives_only_what_is_lacking(self) -> None:
        plan = planned(candidate(1), candidate(2), short_blocks=9)
        assert plan is not None
        assert plan.freed_blocks == 9
        assert [victim.mode for victim in plan.victims] == [
            PreemptionMode.RECOMPUTE,
            PreemptionMode.TRIM,
        ]

    def test_the_last_admitted_go_where_that_is_cheaper_than_the_best_price_per_block(self) -> None:
        trio = [
            VictimCandidate(1, 0, 1, True, 2, 2, computed_tokens=24, reusable=True),
            VictimCandidate(2, 0, 2, True, 5, 1, computed_tokens=0, reusable=False),
            VictimCandidate(3, 0, 3, True, 1, 1, computed_tokens=16, reusable=True),
        ]
        assert sorted(victims(planned(*trio, short_blocks=2))) == [2, 3]

    def test_few_victims_are_taken_where_stopping_one_costs_more_than_its_tokens(self) -> None:
        small = [candidate(i, computed_tokens=1) for i in range(1, 5)]  # a token each to lose
        big = candidate(5, computed_tokens=100)
        assert len(victims(planned(*small, big, short_blocks=4, rates=SLOW_COPY))) == 4
        costly = measured(copy=1.0, stall_seconds=0.1)
        assert victims(planned(*small, big, short_blocks=4, rates=costly)) == [5]


class TestBounds:
    """Numbers that make no sense are refused."""

    @pytest.mark.parametrize("field", ["short_blocks", "host_free_blocks"])
    def test_of_blocks(self, field: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{field} is -1, but must be at least 0"):
            planned(candidate(1), **{field: -1})

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("block_tokens", 0),
            ("block_bytes", -1),
            ("stall_seconds", -0.1),
            ("stall_seconds", math.nan),
            ("prefill_tokens_per_second", 0.0),
            ("copy_bytes_per_second", -1.0),
        ],
    )
    def test_of_rates(self, field: str, value: float) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{field} is {value}"):
            replace(measured(), **{field: value})


class TestRateMeter:
    """The average speed."""

    def test_knows_nothing_before_the_first_measurement(self) -> None:
        meter = RateMeter()
        meter.add(0, 1.0)
        meter.add(10, 0.0)
        assert meter.per_second is None

    def test_first_measurement_is_the_average(self) -> None:
        meter = RateMeter()
        meter.add(100, 2.0)
        assert meter.per_second == pytest.approx(50.0)

    def test_follows_a_change_and_gives_weight_by_duration(self) -> None:
        meter = RateMeter(weight=0.5)
        meter.add(100, 1.0)
        meter.add(1, 0.001)  # ten times as fast, but for a moment only
        assert meter.per_second == pytest.approx(100.0, rel=0.02)
        for _ in range(20):
            meter.add(10, 1.0)
        assert meter.per_second == pytest.approx(10.0, rel=0.01)

    @pytest.mark.parametrize("weight", [0.0, -1.0, 1.5])
    def test_weight_is_a_share(self, weight: float) -> None:
        with pytest.raises(InvalidArgumentError, match="weight"):
            RateMeter(weight)
