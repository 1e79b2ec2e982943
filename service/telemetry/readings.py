"""From the numbers of the front to metrics. Pure.

A counter is there from the start, at 0. A gauge of the engine is not there until an engine has
told it: nobody is shown a 0 that means "not known". Those of its memory go when it dies, so that
neither its last moments nor a device without it are taken for what its successor has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kvcache import MissReason
from service.engine.figures import (
    EngineStats,
    GovernorAction,
    OomRung,
    PreemptionMode,
    PreemptionReason,
    TierFigures,
    Vitals,
)
from service.front.admin_actions import AdminAction
from service.front.state import FrontState, FrontStats, ModelInfo
from service.telemetry.catalog import admin, cache, memory, requests, server, vllm
from service.telemetry.catalog import tenants as tenant_catalog
from service.telemetry.catalog.metric import Metric
from service.telemetry.exporter import Reading
from service.telemetry.tenants import TenantNames


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on the two clocks."""

    unix_seconds: float
    monotonic_seconds: float

    def unix(self, monotonic_seconds: float) -> float:
        """A monotonic time of this machine, in Unix time."""
        return self.unix_seconds - (self.monotonic_seconds - monotonic_seconds)


_EngineRows: TypeAlias = (
    "tuple[tuple[Metric, tuple[str, ...], Callable[[EngineStats], float]], ...]"
)
_TierRows: TypeAlias = "tuple[tuple[Metric, tuple[str, ...], Callable[[TierFigures], float]], ...]"
_VitalRows: TypeAlias = "tuple[tuple[Metric, tuple[str, ...], Callable[[Vitals], float]], ...]"

_ENGINE_GAUGES: _EngineRows = (
    (server.SEQUENCES, ("running",), lambda engine: engine.running),
    (server.SEQUENCES, ("waiting",), lambda engine: engine.waiting),
    (server.SEQUENCES, ("preempted",), lambda engine: engine.preempted),
    (server.STEP_TIME, (), lambda engine: engine.step_seconds),
    (cache.BLOCKS, ("free",), lambda engine: engine.blocks_free),
    (cache.BLOCKS, ("cached",), lambda engine: engine.blocks_cached),
    # The engine counts reserved blocks among the held ones.
    (cache.BLOCKS, ("active",), lambda engine: engine.blocks_held - engine.blocks_reserved),
    (cache.BLOCKS, ("reserved",), lambda engine: engine.blocks_reserved),
    (cache.BLOCKS, ("kept",), lambda engine: engine.blocks_kept),
    (cache.CAPACITY, (), lambda engine: engine.blocks_total),
    (cache.SHARED, (), lambda engine: engine.blocks_shared),
    (cache.SLACK_TOKENS, (), lambda engine: engine.slack_tokens),
)
_ENGINE_COUNTERS: _EngineRows = (
    (server.STEPS, (), lambda engine: engine.steps),
    (server.BUSY, (), lambda engine: engine.busy_seconds),
    (server.COMPUTED_TOKENS, ("prefill",), lambda engine: engine.prefill_tokens),
    (server.COMPUTED_TOKENS, ("decode",), lambda engine: engine.decode_tokens),
    (cache.EVICTED, (), lambda engine: engine.evicted_blocks),
    (cache.LOOKUP_TOKENS, (), lambda engine: engine.lookup_tokens),
    (cache.HIT_TOKENS, (), lambda engine: engine.hit_tokens),
    (cache.REGRETTED_TOKENS, (), lambda engine: engine.regretted_tokens),
)
_TIER_GAUGES: _TierRows = (
    (cache.TIER_USED, ("host",), lambda tiers: tiers.host_bytes),
    (cache.TIER_USED, ("disk",), lambda tiers: tiers.disk_bytes),
    (cache.TIER_CAPACITY, ("host",), lambda tiers: tiers.host_capacity_bytes),
    (cache.TIER_CAPACITY, ("disk",), lambda tiers: tiers.disk_capacity_bytes),
    (cache.TIER_LOADS, (), lambda tiers: tiers.loads),
)
_TIER_COUNTERS: _TierRows = (
    (cache.TIER_SPILLED, (), lambda tiers: tiers.spilled_blocks),
    (cache.TIER_LOST, (), lambda tiers: tiers.lost_blocks),
    (cache.TIER_LOADED, (), lambda tiers: tiers.loaded_blocks),
    (cache.TIER_DROPPED, (), lambda tiers: tiers.dropped_blocks),
    (cache.TIER_EXPIRED, (), lambda tiers: tiers.expired_loads),
    (cache.TIER_FAILURES, (), lambda tiers: tiers.failures),
)
_VITAL_GAUGES: _VitalRows = (
    (memory.OWNED, ("weights",), lambda vitals: vitals.weights_bytes),
    (memory.OWNED, ("kv_pool",), lambda vitals: vitals.kv_bytes),
    (memory.OWNED, ("activations",), lambda vitals: vitals.activation_bytes),
    (memory.OWNED, ("graphs",), lambda vitals: vitals.graph_bytes),
    (memory.OWNED, ("context",), lambda vitals: vitals.context_bytes),
    (memory.OWNED, ("others",), lambda vitals: vitals.other_bytes),
    (memory.CAPACITY, (), lambda vitals: vitals.device_total_bytes),
    (memory.FREE, (), lambda vitals: vitals.device_free_bytes),
    (memory.RECLAIMABLE, (), lambda vitals: vitals.reclaimable_bytes),
    (memory.HEADROOM, (), lambda vitals: vitals.headroom_bytes),
    (memory.DEMAND, (), lambda vitals: vitals.demand_bytes),
    (memory.HEADROOM_LOW, (), lambda vitals: vitals.headroom_low_bytes),
    (memory.DEMAND_HIGH, (), lambda vitals: vitals.demand_high_bytes),
    (memory.ALLOCATOR_ALLOCATED, (), lambda vitals: vitals.allocator_allocated_bytes),
    (memory.ALLOCATOR_RESERVED, (), lambda vitals: vitals.allocator_reserved_bytes),
    (memory.ALLOCATOR_INACTIVE, (), lambda vitals: vitals.allocator_inactive_bytes),
    (memory.HOST_AVAILABLE, (), lambda vitals: vitals.host_available_bytes),
    (memory.KV_EXHAUSTION, (), lambda vitals: vitals.kv_exhaustion_seconds),
    (memory.DEVICE_EXHAUSTION, (), lambda vitals: vitals.device_exhaustion_seconds),
    (memory.STEP_BUDGET, (), lambda vitals: vitals.step_tokens),
    (memory.PREFILL_BUDGET, (), lambda vitals: vitals.prefill_tokens),
    (memory.ADMISSIONS_OPEN, (), lambda vitals: vitals.admits),
    (cache.FREE_LOW, (), lambda vitals: vitals.kv_free_low_blocks),
    (cache.GOAL, (), lambda vitals: vitals.pool_goal_blocks),
    (cache.CEILING, (), lambda vitals: vitals.pool_ceiling_blocks),
)
_PREEMPTION_LABELS = tuple(
    (mode.name.lower(), reason.name.lower())
    for mode, reason in itertools.product(PreemptionMode, PreemptionReason)
)
_MISS_LABELS = tuple((reason.value,) for reason in MissReason)
# What is told of tiers when there are none.
_NO_TIERS = TierFigures(*(0,) * len(TierFigures.__struct_fields__))


def readings(
    stats: FrontStats, model: ModelInfo | None, tenants: TenantNames, now: Moment
) -> Iterator[Reading]:
    """All there is to tell at this moment under our own names."""
    engine = stats.engine
    yield from _server_readings(stats)
    yield from _model_readings(model)
    yield from _engine_readings(engine)
    yield from _event_readings(engine)
    yield from _tenant_readings(engine, tenants)
    yield from _tier_readings(engine)
    yield from _swap_readings(engine, model)
    vitals = None if engine is None else engine.vitals
    if vitals is not None and stats.engine_has_spoken:
        yield from _vital_gauges(vitals, now)
    yield from _vital_counters(vitals)


def vllm_readings(stats: FrontStats, model: ModelInfo | None) -> Iterator[Reading]:
    """What vLLM's names can be given without a lie."""
    engine = stats.engine
    yield Reading(vllm.RUNNING, stats.live_requests - stats.waiting_requests)
    yield Reading(vllm.WAITING, stats.waiting_requests)
    if engine is not None:
        used_blocks = engine.blocks_total - engine.blocks_free - engine.blocks_cached
        yield Reading(vllm.KV_USAGE, used_blocks / max(1, engine.blocks_total))
    if model is not None:
        labels = (str(model.block_tokens), str(model.num_blocks))
        yield Reading(vllm.CACHE_CONFIG, 1, labels)
    yield Reading(vllm.PREFIX_QUERIES, 0 if engine is None else engine.lookup_tokens)
    yield Reading(vllm.PREFIX_HITS, 0 if engine is None else engine.hit_tokens)
    yield Reading(vllm.PREEMPTIONS, 0 if engine is None else engine.preemptions)


def _server_readings(stats: FrontStats) -> Iterator[Reading]:
    for state in FrontState:
        yield Reading(server.STATE, state is stats.state, (state.value,))
    yield Reading(server.RESTARTS, stats.engine_restarts)
    yield Reading(requests.LIVE, stats.live_requests - stats.waiting_requests, ("running",))
    yield Reading(requests.LIVE, stats.waiting_requests, ("waiting",))
    yield Reading(requests.SLOW_STREAMS, stats.slow_streams)
    yield Reading(requests.RETRY_HINT, stats.suggested_retry_seconds)
    yield Reading(memory.PRESSURE, stats.pressure)
    last_oom_seconds = 0.0 if stats.last_oom_time is None else stats.last_oom_time.timestamp()
    yield Reading(memory.LAST_OOM, last_oom_seconds)
    yield Reading(server.FLIGHT_RECORDS, stats.flight_records)
    yield Reading(server.FLIGHT_LOST, stats.lost_flight_records)
    if stats.last_flight_time is not None:
        yield Reading(server.FLIGHT_LAST, stats.last_flight_time.timestamp())
    if stats.faults is not None:
        yield Reading(server.FAULTS, stats.faults.ordered)
    yield Reading(server.FAULT_STRIKES, 0 if stats.faults is None else stats.faults.strikes)
    for action in AdminAction:
        yield Reading(admin.ACTIONS, stats.admin_actions.get(action, 0), (action.value,))
    if stats.engine is not None and stats.max_blocks:
        yield Reading(admin.MEMORY_UTILIZATION, stats.engine.blocks_total / stats.max_blocks)


def _model_readings(model: ModelInfo | None) -> Iterator[Reading]:
    if model is None:
        return
    labels = (
        *(model.version, model.weights_dtype, model.kv_dtype),
        *(model.device, model.attention_backend),
    )
    yield Reading(server.MODEL_INFO, 1, labels)
    yield Reading(cache.BLOCK_SIZE, model.bytes_per_block)
    yield Reading(cache.BLOCK_TOKENS, model.block_tokens)
    yield Reading(cache.REACH, model.max_blocks)


def _engine_readings(engine: EngineStats | None) -> Iterator[Reading]:
    if engine is not None:
        for metric, labels, read in _ENGINE_GAUGES:
            yield Reading(metric, read(engine), labels)
    for metric, labels, read in _ENGINE_COUNTERS:
        yield Reading(metric, 0 if engine is None else read(engine), labels)


def _event_readings(engine: EngineStats | None) -> Iterator[Reading]:
    preemptions = (0,) * len(_PREEMPTION_LABELS) if engine is None else engine.preemption_counts
    for labels, count in zip(_PREEMPTION_LABELS, preemptions, strict=True):
        yield Reading(cache.PREEMPTIONS, count, labels)
    misses = (0,) * len(_MISS_LABELS) if engine is None else engine.misses
    for label, count in zip(_MISS_LABELS, misses, strict=True):
        yield Reading(cache.MISSES, count, label)


def _tenant_readings(engine: EngineStats | None, tenants: TenantNames) -> Iterator[Reading]:
    if engine is None:
        return
    held = [(tenants.of(tenant), count) for tenant, count in engine.tenant_blocks.items()]
    blocks = dict.fromkeys(tenants.all(), 0)  # after all of them have got their names
    for name, count in held:
        blocks[name] += count
    for name, count in blocks.items():
        yield Reading(tenant_catalog.KV_BLOCKS, count, (name,))


def _swap_readings(engine: EngineStats | None, model: ModelInfo | None) -> Iterator[Reading]:
    tiers = _NO_TIERS if engine is None or engine.tiers is None else engine.tiers
    block_bytes = 0 if model is None else model.bytes_per_block
    yield Reading(cache.SWAP, tiers.swapped_out_blocks * block_bytes, ("out",))
    yield Reading(cache.SWAP, tiers.swapped_in_blocks * block_bytes, ("in",))


def _tier_readings(engine: EngineStats | None) -> Iterator[Reading]:
    tiers = _NO_TIERS if engine is None or engine.tiers is None else engine.tiers
    if engine is not None:
        for metric, labels, read in _TIER_GAUGES:
            yield Reading(metric, read(tiers), labels)
    for metric, labels, read in _TIER_COUNTERS:
        yield Reading(metric, read(tiers), labels)


def _vital_gauges(vitals: Vitals, now: Moment) -> Iterator[Reading]:
    for metric, labels, read in _VITAL_GAUGES:
        yield Reading(metric, read(vitals), labels)
    yield Reading(memory.SAMPLED, now.unix(vitals.taken_seconds))


def _vital_counters(vitals: Vitals | None) -> Iterator[Reading]:
    yield Reading(memory.ALLOCATOR_RETRIES, 0 if vitals is None else vitals.allocator_retries)
    yield Reading(memory.ALLOCATOR_OOMS, 0 if vitals is None else vitals.allocator_ooms)
    rungs = (0,) * len(OomRung) if vitals is None else vitals.rungs
    for rung, count in zip(OomRung, rungs, strict=True):
        yield Reading(memory.OOM_RUNGS, count, (rung.name.lower(),))
    actions = (0,) * len(GovernorAction) if vitals is None else vitals.actions
    for action, count in zip(GovernorAction, actions, strict=True):
        yield Reading(memory.GOVERNOR_ACTIONS, count, (action.name.lower(),))
