"""The signals of the last minute: how many are kept, and how they are written down."""

from __future__ import annotations

import itertools

from flight_fakes import engine_stats, vitals
from hypothesis import given
from hypothesis import strategies as st

from service.engine.figures import EngineStats, Vitals
from service.flight.record import ledger_of
from service.flight.signals import KEPT_SECONDS, Sample, SignalRing, columns


def sample(seconds: float, **stats: int) -> Sample:
    return Sample(seconds, 1, 3, engine_stats(**stats))


@given(st.lists(st.floats(0.0, 1.0), max_size=300))
def test_no_two_samples_are_nearer_than_a_tenth_of_a_second(gaps: list[float]) -> None:
    ring, now_seconds, times = SignalRing(), 0.0, []
    for gap in gaps:
        now_seconds += gap
        times.append(now_seconds)
        ring.add(sample(now_seconds))
    kept = [one.seconds for one in ring.since(0.0)]
    assert kept[-1:] == times[-1:]  # the last word of an engine is never missing
    regular = kept[:-1]
    assert all(later >= earlier + 0.1 for earlier, later in itertools.pairwise(regular))
    # And none is left out without need.
    for time in times:
        assert any(time - 0.1 < one <= time for one in kept)


def test_a_busy_engine_fills_a_minute_and_no_more() -> None:
    ring, stats = SignalRing(), engine_stats()
    for step in range(100_000):
        ring.add(Sample(step / 1000.0, 1, 0, stats))
    now_seconds = 100.0
    kept = ring.since(now_seconds - KEPT_SECONDS)
    assert 590 <= len(kept) <= 602
    assert kept[-1].seconds == 99.999
    assert kept[0].seconds < now_seconds - KEPT_SECONDS + 0.2


def test_what_is_older_than_a_minute_is_left_out() -> None:
    ring = SignalRing()
    for seconds in (0.0, 30.0, 100.0):
        ring.add(sample(seconds))
    assert [one.seconds for one in ring.since(100.0 - KEPT_SECONDS)] == [100.0]


def test_columns_have_every_figure_and_one_length() -> None:
    samples = [sample(99.0, running=1), sample(99.5, running=2)]
    signals = columns(samples, 100.0)
    assert signals.seconds == [-1.0, -0.5]
    assert signals.engine["running"] == [1, 2]
    assert signals.live_requests == [3, 3]
    assert signals.vitals["device_free_bytes"] == [400, 400]
    assert signals.vitals["headroom_bytes"] == [500, 500]
    figures = {*EngineStats.__struct_fields__} - {"tiers", "vitals"}
    assert signals.engine.keys() == figures
    assert signals.vitals.keys() == {*Vitals.__struct_fields__, "headroom_bytes"} - {
        "taken_seconds"
    }
    assert {len(column) for column in (*signals.engine.values(), *signals.vitals.values())} == {2}


def test_engines_that_have_not_looked_leave_gaps() -> None:
    blind = Sample(99.0, 1, 0, engine_stats(vitals=None))
    seeing = Sample(99.5, 1, 0, engine_stats(vitals=vitals(device_free_bytes=7)))
    assert columns([blind, seeing], 100.0).vitals["device_free_bytes"] == [None, 7]
    assert columns([blind], 100.0).vitals == {}


def test_the_ledger_sums_up_and_says_how_old_it_is() -> None:
    ledger = ledger_of(vitals(), now_seconds=100.25)
    assert ledger.age_seconds == 0.25
    assert ledger.headroom_bytes == 400 + 100
    assert sum(ledger.by_owner.values()) == ledger.total_bytes - ledger.free_bytes
