"""What the front remembers of faults, and what it tells each new engine."""

from __future__ import annotations

import pytest

from service.engine.messages import OrderedFault
from service.faults.plan import Balloon, ExitEngine, FailAllocation, FaultPlan, HangEngine
from service.front.faults import FaultBook, FaultFigures, FaultsDisabled

EXIT = ExitEngine(nth_step=5, count=3)
HANG = HangEngine()
BALLOON = Balloon(share=0.5, after_seconds=2, rise_seconds=3, hold_seconds=5)


def book(*faults: ExitEngine | HangEngine | Balloon | FailAllocation) -> FaultBook:
    made = FaultBook(allowed=True)
    made.replace(FaultPlan(list(faults)), now_seconds=0.0)
    return made


def test_a_server_that_allows_none_takes_none() -> None:
    refusing = FaultBook(allowed=False)
    for plan in (FaultPlan([EXIT]), FaultPlan([])):
        with pytest.raises(FaultsDisabled):
            refusing.replace(plan, 1.0)
    assert refusing.inject(1.0).faults == []
    assert refusing.figures(1.0) is None


def test_the_clock_starts_when_the_first_engine_hears_of_it() -> None:
    faults = book(EXIT, BALLOON)
    first = faults.inject(now_seconds=100.0)
    assert first.faults == [OrderedFault(0, 100.0, EXIT), OrderedFault(1, 100.0, BALLOON)]
    assert faults.inject(now_seconds=103.0) == first  # the next engine


def test_an_engine_gets_what_is_left_of_a_strike() -> None:
    faults = book(EXIT, HANG)
    faults.inject(0.0)
    faults.fired(0)
    faults.fired(1)
    (left,) = faults.inject(1.0).faults
    assert left == OrderedFault(0, 0.0, ExitEngine(nth_step=5, count=2))
    faults.fired(0)
    assert faults.inject(1.5).faults == [OrderedFault(0, 0.0, ExitEngine(nth_step=5, count=1))]
    faults.fired(0)
    assert faults.inject(2.0).faults == []
    assert faults.figures(2.0) == FaultFigures(ordered=0, strikes=4)


def test_a_spell_is_over_at_its_end_and_not_before() -> None:
    faults = book(BALLOON)
    faults.inject(100.0)
    assert len(faults.inject(109.9).faults) == 1
    assert faults.inject(110.0).faults == []
    assert faults.figures(110.0) == FaultFigures(ordered=0, strikes=0)


def test_a_plan_that_waits_for_an_engine_does_not_end() -> None:
    faults = book(BALLOON)
    assert faults.figures(1000.0) == FaultFigures(ordered=1, strikes=0)
    assert faults.inject(1000.0).faults == [OrderedFault(0, 1000.0, BALLOON)]


def test_a_new_plan_replaces_the_old_one_and_starts_its_own_clock() -> None:
    faults = book(EXIT, HANG, BALLOON)
    faults.inject(0.0)
    faults.fired(1)
    assert faults.replace(FaultPlan([HANG]), 4.0) == 2
    assert faults.inject(5.0).faults == [OrderedFault(3, 5.0, HANG)]
    assert faults.replace(FaultPlan([]), 6.0) == 1
    assert faults.inject(7.0).faults == []


def test_a_strike_that_was_replaced_meanwhile_does_not_count_against_the_new_plan() -> None:
    faults = book(EXIT)
    faults.inject(0.0)
    faults.replace(FaultPlan([EXIT]), 1.0)
    faults.fired(0)  # on its way when the new plan came
    assert faults.inject(2.0).faults == [OrderedFault(1, 2.0, EXIT)]
    assert faults.figures(2.0) == FaultFigures(ordered=1, strikes=1)
