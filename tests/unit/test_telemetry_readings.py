"""What is told of a front: all of it, none of what is not known, and counters from the start."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from api_fakes import ENGINE_STATS, MODEL, FakeFront
from memory_figures import VITALS

from kvcache import MissReason
from service.engine.figures import EngineStats, PreemptionMode, PreemptionReason, TierFigures
from service.front.state import FrontState, FrontStats
from service.telemetry.catalog import (
    METRICS,
    Kind,
    Metric,
    cache,
    memory,
    requests,
    server,
    vllm,
)
from service.telemetry.catalog import tenants as tenant_catalog
from service.telemetry.catalog.tenants import NO_TENANT, OTHER_TENANTS
from service.telemetry.readings import Moment, readings, vllm_readings
from service.telemetry.tenants import TenantNames

NOW = Moment(unix_seconds=1_000_000.0, monotonic_seconds=50.0)
TIERS = TierFigures(*range(1, 1 + len(TierFigures.__struct_fields__)))
FULL = msgspec.structs.replace(ENGINE_STATS, trims=1, swaps=3, blocks_kept=0, vitals=VITALS)


def front_stats(engine: EngineStats | None) -> FrontStats:
    front = FakeFront()
    front.engine = engine
    return front.stats()


def tenants() -> TenantNames:
    return TenantNames(2, ["interactive"])


def told(engine: EngineStats | None) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (reading.metric.name, reading.labels): reading.value
        for reading in readings(front_stats(engine), MODEL, tenants(), NOW)
    }


def by_label(engine: EngineStats | None, metric: Metric) -> dict[str, float]:
    return {
        labels[0]: value for (name, labels), value in told(engine).items() if name == metric.name
    }


def test_before_an_engine_speaks_counters_are_0_and_its_gauges_unknown() -> None:
    nothing, everything = told(None), told(msgspec.structs.replace(FULL, tiers=TIERS))
    counters = {key for key in everything if METRICS[key[0]].kind is Kind.COUNTER}
    assert counters == {key for key in nothing if METRICS[key[0]].kind is Kind.COUNTER}
    assert {nothing[key] for key in counters if key[0] != server.RESTARTS.name} == {0}
    of_the_engine = everything.keys() - nothing.keys()
    assert (memory.FREE.name, ()) in of_the_engine
    assert (memory.KV_EXHAUSTION.name, ()) in of_the_engine
    assert (cache.BLOCKS.name, ("free",)) in of_the_engine


def test_an_engine_that_has_not_looked_at_its_memory_tells_none() -> None:
    names = {name for name, _labels in told(ENGINE_STATS)}
    assert cache.CAPACITY.name in names
    assert memory.OOM_RUNGS.name in names
    assert memory.FREE.name not in names


def test_between_two_engines_counters_stay_and_figures_of_memory_go() -> None:
    stats = dataclasses.replace(front_stats(FULL), engine_has_spoken=False)
    between = {(r.metric.name, r.labels) for r in readings(stats, MODEL, tenants(), NOW)}
    lost = told(FULL).keys() - between
    assert {METRICS[name].kind for name, _labels in lost} == {Kind.GAUGE}
    gone = {name for name, _labels in lost}
    assert {memory.FREE.name, memory.HEADROOM_LOW.name, memory.SAMPLED.name} <= gone
    assert {memory.ADMISSIONS_OPEN.name, cache.GOAL.name, cache.FREE_LOW.name} <= gone
    assert cache.CAPACITY.name not in gone


def test_readings_of_one_metric_follow_each_other() -> None:
    names = [r.metric.name for r in readings(front_stats(FULL), MODEL, tenants(), NOW)]
    runs = [name for name, before in zip(names, [None, *names], strict=False) if name != before]
    assert len(runs) == len(set(runs))


def test_states_of_blocks_add_up_to_the_capacity() -> None:
    blocks = by_label(FULL, cache.BLOCKS)
    assert blocks == {"free": 20, "cached": 10, "active": 7, "reserved": 3, "kept": 0}
    assert sum(blocks.values()) == told(FULL)[(cache.CAPACITY.name, ())]


def test_owners_and_what_is_free_add_up_to_the_device() -> None:
    owned, all_told = by_label(FULL, memory.OWNED), told(FULL)
    free = all_told[(memory.FREE.name, ())]
    assert sum(owned.values()) + free == all_told[(memory.CAPACITY.name, ())]
    assert owned == {
        "weights": 4_000,
        "kv_pool": 2_500,
        "activations": 800,
        "graphs": 70,
        "context": 600,
        "others": 1_030,
    }
    assert all_told[(memory.HEADROOM.name, ())] == 1_500
    assert all_told[(memory.DEMAND.name, ())] == 900


def test_preemptions_by_mode_and_reason_add_up_to_all() -> None:
    counts = {
        labels: value
        for (name, labels), value in told(FULL).items()
        if name == cache.PREEMPTIONS.name
    }
    assert {labels: count for labels, count in counts.items() if count} == {
        ("trim", "kv_full"): 1,
        ("swap", "priority"): 1,
        ("recompute", "pool_shrunk"): 2,
        ("recompute", "oom"): 1,
    }
    assert len(counts) == len(PreemptionMode) * len(PreemptionReason)
    assert sum(counts.values()) == FULL.preemptions


def test_misses_have_the_reasons_of_the_cache() -> None:
    assert by_label(FULL, cache.MISSES) == dict(
        zip([reason.value for reason in MissReason], (5, 4, 3, 2, 1), strict=True)
    )


def test_blocks_of_tenants_beyond_the_bound_are_counted_together() -> None:
    engine = msgspec.structs.replace(FULL, tenant_blocks={"interactive": 8, "a": 2, "b": 3, "": 4})
    assert by_label(engine, tenant_catalog.KV_BLOCKS) == {
        "interactive": 8,
        NO_TENANT: 4,
        OTHER_TENANTS: 5,
    }


def test_swapped_blocks_are_told_in_bytes() -> None:
    engine = msgspec.structs.replace(
        FULL, tiers=msgspec.structs.replace(TIERS, swapped_out_blocks=3, swapped_in_blocks=2)
    )
    size = MODEL.bytes_per_block
    assert by_label(engine, cache.SWAP) == {"out": 3 * size, "in": 2 * size}
    assert by_label(None, cache.SWAP) == {"out": 0, "in": 0}


def test_rungs_and_actions_have_their_names() -> None:
    assert by_label(FULL, memory.OOM_RUNGS) == {"retry": 4, "shrink": 3, "requeue": 2, "fail": 1}
    assert by_label(FULL, memory.GOVERNOR_ACTIONS) == {
        "narrow": 11,
        "close": 12,
        "shrink": 13,
        "grow": 14,
    }


def test_the_allocator_tells_its_figures_and_the_last_minute_its_extremes() -> None:
    all_told = told(FULL)
    figures = {
        memory.ALLOCATOR_ALLOCATED: 4_370,
        memory.ALLOCATOR_RESERVED: 4_870,
        memory.ALLOCATOR_INACTIVE: 40,
        memory.ALLOCATOR_RETRIES: 3,
        memory.ALLOCATOR_OOMS: 2,
        memory.HEADROOM_LOW: 200,
        memory.DEMAND_HIGH: 950,
    }
    assert {metric: all_told[(metric.name, ())] for metric in figures} == figures


def test_the_last_oom_is_0_until_there_was_one() -> None:
    oom_time = datetime(2026, 1, 2, tzinfo=UTC)
    stats = front_stats(None)
    for time, seconds in ((None, 0), (oom_time, oom_time.timestamp())):
        told_then = readings(replace(stats, last_oom_time=time), None, tenants(), NOW)
        at = {r.metric: r.value for r in told_then}
        assert at[memory.LAST_OOM] == seconds


def test_a_look_at_memory_is_dated_in_unix_time() -> None:
    assert VITALS.taken_seconds == 1.0
    assert told(FULL)[(memory.SAMPLED.name, ())] == 1_000_000.0 - 49.0


def test_without_tiers_there_is_no_capacity() -> None:
    assert by_label(FULL, cache.TIER_CAPACITY) == {"host": 0, "disk": 0}
    with_tiers = msgspec.structs.replace(FULL, tiers=TIERS)
    assert by_label(with_tiers, cache.TIER_CAPACITY) == {
        "host": TIERS.host_capacity_bytes,
        "disk": TIERS.disk_capacity_bytes,
    }
    assert by_label(with_tiers, cache.TIER_USED) == {
        "host": TIERS.host_bytes,
        "disk": TIERS.disk_bytes,
    }


def test_the_state_of_the_server_is_one_of_them() -> None:
    states = by_label(None, server.STATE)
    assert states == {state.value: state is FrontState.READY for state in FrontState}


def test_live_requests_run_or_wait() -> None:
    assert by_label(None, requests.LIVE) == {"running": 5, "waiting": 3}


@pytest.mark.parametrize("engine", [None, FULL], ids=["no engine", "engine"])
def test_vllm_is_told_the_same(engine: EngineStats | None) -> None:
    said = {r.metric: (r.value, r.labels) for r in vllm_readings(front_stats(engine), MODEL)}
    assert said[vllm.RUNNING] == (5, ())
    assert said[vllm.WAITING] == (3, ())
    assert said[vllm.CACHE_CONFIG] == (1, ("16", "40"))
    if engine is None:
        assert vllm.KV_USAGE not in said
        assert said[vllm.PREFIX_QUERIES] == (0, ())
    else:
        assert said[vllm.KV_USAGE] == (10 / 40, ())
        assert said[vllm.PREFIX_QUERIES] == (100, ())
        assert said[vllm.PREFIX_HITS] == (30, ())
        assert said[vllm.PREEMPTIONS] == (5, ())
