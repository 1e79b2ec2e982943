"""What is left of the figures when an engine dies."""

from __future__ import annotations

import msgspec
from api_fakes import ENGINE_STATS
from memory_figures import VITALS

from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.engine.figures import EngineStats, TierFigures, Vitals
from service.front.engine_totals import EngineTotals


def with_vitals(vitals: Vitals) -> EngineStats:
    return msgspec.structs.replace(ENGINE_STATS, vitals=vitals)


def vitals_of(totals: EngineTotals) -> Vitals:
    stats = totals.current()
    assert stats is not None
    assert stats.vitals is not None
    return stats.vitals


def test_counters_of_memory_go_on_over_engines() -> None:
    totals = EngineTotals()
    for engine in range(1, 4):
        totals.update(
            with_vitals(
                msgspec.structs.replace(
                    VITALS,
                    allocator_retries=engine,
                    allocator_ooms=10 * engine,
                    rungs=(1, 2, 3, engine),
                    actions=(4, 0, 0, 1),
                )
            )
        )
        vitals = vitals_of(totals)
        assert vitals.allocator_retries == sum(range(engine + 1))
        assert vitals.allocator_ooms == 10 * sum(range(engine + 1))
        assert vitals.rungs == (engine, 2 * engine, 3 * engine, sum(range(engine + 1)))
        assert vitals.actions == (4 * engine, 0, 0, engine)
        totals.engine_lost()
        assert vitals_of(totals).rungs == vitals.rungs
        totals.engine_lost()  # one that died before it said anything
        assert vitals_of(totals).rungs == vitals.rungs


def test_a_dead_engine_has_no_memory() -> None:
    totals = EngineTotals()
    totals.update(with_vitals(VITALS))
    totals.engine_lost()
    vitals = vitals_of(totals)
    assert vitals.device_total_bytes == VITALS.device_total_bytes
    assert vitals.device_free_bytes == VITALS.device_total_bytes - VITALS.other_bytes
    taken_bytes = (
        vitals.weights_bytes
        + vitals.kv_bytes
        + vitals.activation_bytes
        + vitals.graph_bytes
        + vitals.context_bytes
    )
    assert taken_bytes == 0
    assert vitals.other_bytes == VITALS.other_bytes
    assert vitals.headroom_bytes == vitals.device_free_bytes
    assert vitals.demand_bytes == 0
    assert vitals.allocator_allocated_bytes == vitals.allocator_reserved_bytes == 0
    assert vitals.allocator_inactive_bytes == 0


def test_what_a_dead_engine_was_short_of_its_successor_is_not() -> None:
    totals = EngineTotals()
    totals.update(with_vitals(msgspec.structs.replace(VITALS, admits=False, pool_goal_blocks=1)))
    assert totals.has_spoken
    totals.engine_lost()
    assert not totals.has_spoken
    vitals = vitals_of(totals)
    assert vitals.admits
    assert vitals.pool_goal_blocks == vitals.pool_ceiling_blocks == vitals.kv_free_low_blocks
    assert vitals.headroom_low_bytes == vitals.device_free_bytes
    assert vitals.demand_high_bytes == 0


def test_a_rung_that_was_told_with_the_last_words_is_counted() -> None:
    totals = EngineTotals()
    totals.update(with_vitals(msgspec.structs.replace(VITALS, rungs=(0, 0, 0, 0))))
    totals.looked(msgspec.structs.replace(VITALS, rungs=(1, 0, 0, 0), allocator_ooms=1))
    assert vitals_of(totals).rungs == (1, 0, 0, 0)
    totals.engine_lost()
    assert vitals_of(totals).rungs == (1, 0, 0, 0)
    totals.looked(msgspec.structs.replace(VITALS, rungs=(0, 1, 0, 0), allocator_ooms=1))
    totals.engine_lost()  # before it told anything else
    assert vitals_of(totals).rungs == (1, 1, 0, 0)
    assert vitals_of(totals).allocator_ooms == 2


def test_the_first_words_of_an_engine_may_be_its_last() -> None:
    totals = EngineTotals()
    totals.looked(msgspec.structs.replace(VITALS, rungs=(1, 0, 0, 0)))
    assert totals.current() is None
    totals.engine_lost()
    totals.update(with_vitals(msgspec.structs.replace(VITALS, rungs=(0, 2, 0, 0))))
    assert vitals_of(totals).rungs == (1, 2, 0, 0)


def test_the_level_of_a_dead_engine_does_not_stay() -> None:
    totals = EngineTotals()
    totals.update(with_vitals(VITALS))
    assert vitals_of(totals).level is PressureLevel.HIGH
    totals.engine_lost()
    vitals = vitals_of(totals)
    assert vitals.level is PressureLevel.NORMAL
    assert vitals.kv_exhaustion_seconds == vitals.device_exhaustion_seconds == FOREVER_SECONDS


def test_an_engine_that_has_not_looked_at_its_memory() -> None:
    totals = EngineTotals()
    totals.update(ENGINE_STATS)
    totals.engine_lost()
    stats = totals.current()
    assert stats is not None
    assert stats.vitals is None


def test_events_of_the_cache_are_counted_over_engines_and_its_contents_are_not() -> None:
    totals = EngineTotals()
    tiers = TierFigures(*range(1, 1 + len(TierFigures.__struct_fields__)))
    one = msgspec.structs.replace(ENGINE_STATS, tiers=tiers)
    for engines in (1, 2, 3):
        totals.update(one)
        stats = totals.current()
        assert stats is not None
        assert stats.tiers is not None
        assert stats.preemption_counts == tuple(engines * n for n in one.preemption_counts)
        assert sum(stats.preemption_counts) == stats.preemptions == engines * one.preemptions
        assert stats.misses == tuple(engines * n for n in one.misses)
        assert stats.regretted_tokens == engines * one.regretted_tokens
        assert stats.tiers.swapped_out_blocks == engines * tiers.swapped_out_blocks
        assert stats.tiers.swapped_in_blocks == engines * tiers.swapped_in_blocks
        assert stats.tenant_blocks == one.tenant_blocks
        totals.engine_lost()
        between = totals.current()
        assert between is not None
        assert between.tiers is not None
        assert between.preemption_counts == stats.preemption_counts
        assert between.tiers.swapped_in_blocks == stats.tiers.swapped_in_blocks
        assert (between.tenant_blocks, between.slack_tokens) == ({}, 0)
