"""Which fault strikes at which step, allocation, load or moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.engine.faulty.schedule import FaultSchedule
from service.engine.messages import OrderedFault
from service.faults.plan import (
    Balloon,
    ExitEngine,
    FailAllocation,
    Fault,
    HangEngine,
    LoseDevice,
    LoseTransfer,
    SlowDevice,
)

BEGAN_SECONDS = 1000.0


def schedule_of(*faults: Fault) -> FaultSchedule:
    schedule = FaultSchedule()
    schedule.replace(OrderedFault(i, BEGAN_SECONDS, fault) for i, fault in enumerate(faults))
    return schedule


def struck(schedule: FaultSchedule, steps: int, elapsed_seconds: float = 0.0) -> list[int | None]:
    """The numbers of the faults that hit so many steps."""
    strikes = (schedule.strike_step(BEGAN_SECONDS + elapsed_seconds) for _ in range(steps))
    return [None if strike is None else strike.fault_id for strike in strikes]


def test_without_orders_nothing_happens() -> None:
    schedule = FaultSchedule()
    assert struck(schedule, 3) == [None] * 3
    assert schedule.strike_growth(0.0) is None
    assert schedule.strike_load(0.0) is None
    assert schedule.foreign_share(0.0) == 0.0
    assert schedule.extra_seconds(0.0) == 0.0
    assert not schedule.awaits_step


def test_a_strike_hits_from_its_nth_occasion_on_as_often_as_it_says() -> None:
    assert struck(schedule_of(FailAllocation(nth=3, count=2)), 6) == [None, None, 0, 0, None, None]
    assert struck(schedule_of(LoseDevice(nth_step=2)), 4) == [None, 0, None, None]
    assert struck(schedule_of(HangEngine()), 2) == [0, None]


def test_nothing_happens_before_its_time() -> None:
    schedule = schedule_of(ExitEngine(after_seconds=5, nth_step=2))
    assert struck(schedule, 3, elapsed_seconds=4.9) == [None] * 3
    assert struck(schedule, 3, elapsed_seconds=5.0) == [None, 0, None]


def test_two_strikes_at_one_step_come_one_after_the_other() -> None:
    schedule = schedule_of(FailAllocation(nth=2), ExitEngine(nth_step=2), HangEngine(nth_step=4))
    assert struck(schedule, 5) == [None, 0, 1, 2, None]


def test_an_order_replaces_all_that_was_ordered_before() -> None:
    schedule = schedule_of(
        FailAllocation(count=9),
        FailAllocation(owner="kv_pool"),
        LoseTransfer(),
        Balloon(share=0.5, hold_seconds=9),
        SlowDevice(extra_seconds=1, hold_seconds=9),
    )
    assert struck(schedule, 1) == [0]
    schedule.replace([])
    now_seconds = BEGAN_SECONDS + 1
    assert struck(schedule, 2) == [None, None]
    assert schedule.strike_growth(now_seconds) is schedule.strike_load(now_seconds) is None
    assert schedule.foreign_share(now_seconds) == schedule.extra_seconds(now_seconds) == 0.0


def test_owners_and_loads_do_not_mix() -> None:
    schedule = schedule_of(FailAllocation(owner="kv_pool"), LoseTransfer(count=2), HangEngine())
    assert struck(schedule, 2) == [2, None]
    assert [schedule.strike_growth(BEGAN_SECONDS) for _ in range(2)] == [0, None]
    assert [schedule.strike_load(BEGAN_SECONDS) for _ in range(3)] == [1, 1, None]


def test_it_is_known_whether_a_step_may_still_be_struck() -> None:
    schedule = schedule_of(FailAllocation(nth=2), LoseTransfer(), FailAllocation(owner="kv_pool"))
    assert schedule.awaits_step
    struck(schedule, 2)
    assert not schedule.awaits_step


def test_chance_is_drawn_from_the_seed() -> None:
    def hits(seed: int, count: int = 1000) -> list[int | None]:
        return struck(schedule_of(FailAllocation(chance=0.25, count=count, seed=seed)), 400)

    assert hits(1) == hits(1) != hits(2)
    assert 60 < 400 - hits(1).count(None) < 140
    assert 400 - hits(1, count=7).count(None) == 7


@given(st.integers(0, 2**63 - 1), st.integers(1, 50))
def test_places_are_in_the_step_and_drawn_from_the_seed(seed: int, count: int) -> None:
    def places() -> list[float]:
        schedule = schedule_of(FailAllocation(seed=seed, count=count))
        strikes = [schedule.strike_step(BEGAN_SECONDS) for _ in range(count)]
        return [strike.place for strike in strikes if strike is not None]

    drawn = places()
    assert drawn == places()
    assert len(set(drawn)) == count
    assert all(0 <= place < 1 for place in drawn)


def test_the_next_engine_is_struck_elsewhere() -> None:
    places = set()
    for left in (3, 2, 1):  # as the front tells each new engine
        strike = schedule_of(ExitEngine(count=left)).strike_step(BEGAN_SECONDS)
        assert strike is not None
        places.add(strike.place)
    assert len(places) == 3


def test_spells_add_up_and_nobody_takes_more_than_there_is() -> None:
    schedule = schedule_of(
        Balloon(share=0.4, hold_seconds=10),
        Balloon(share=0.8, after_seconds=5, hold_seconds=10),
        SlowDevice(extra_seconds=1, hold_seconds=10),
        SlowDevice(extra_seconds=0.5, after_seconds=5, hold_seconds=10),
    )
    shares = {0.0: 0.4, 5.0: 1.0, 10.0: 0.8, 15.0: 0.0}
    extras = {0.0: 1.0, 5.0: 1.5, 10.0: 0.5, 15.0: 0.0}
    for elapsed_seconds, share in shares.items():
        assert schedule.foreign_share(BEGAN_SECONDS + elapsed_seconds) == share
        assert schedule.extra_seconds(BEGAN_SECONDS + elapsed_seconds) == extras[elapsed_seconds]


def test_a_later_engine_meets_a_spell_where_it_is_by_then() -> None:
    balloon = Balloon(share=0.8, rise_seconds=4, hold_seconds=4)
    early, late = schedule_of(balloon), schedule_of(balloon)
    early.foreign_share(BEGAN_SECONDS)
    assert late.foreign_share(BEGAN_SECONDS + 2) == early.foreign_share(BEGAN_SECONDS + 2) == 0.4
