"""From the numbers of the front to the messages of EngineAdminService. Pure."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from kvcache.pressure import FOREVER_SECONDS
from service.api.answers import duration
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.engine.figures import EngineStats, TierFigures, Vitals
from service.front.state import FrontState, FrontStats


def stats_message(stats: FrontStats, now_seconds: float) -> pb.GetStatsResponse:
    """`now_seconds` is monotonic. Before the first engine speaks its part is left at zero."""
    answer = pb.GetStatsResponse(
        time=_now(),
        running_requests=stats.live_requests - stats.waiting_requests,
        waiting_requests=stats.waiting_requests,
        slow_streams=stats.slow_streams,
        pressure=pb.PressureLevel.ValueType(stats.pressure),
        rejections_total=stats.rejected_requests,
        draining=stats.state is FrontState.DRAINING,
        engine_restarts_total=stats.engine_restarts,
    )
    if (engine := stats.engine) is not None:
        answer.preempted_candidates = engine.preempted
        answer.blocks.CopyFrom(blocks_message(stats, engine))
        answer.prefix_lookup_tokens_total = engine.lookup_tokens
        answer.prefix_hit_tokens_total = engine.hit_tokens
        answer.preemptions_total = engine.preemptions
        answer.trims_total = engine.trims
        answer.swaps_total = engine.swaps
        answer.evictions_total = engine.evicted_blocks
        answer.steps_total = engine.steps
        answer.completion_tokens_total = engine.decode_tokens
        answer.step_time.CopyFrom(duration(engine.step_seconds))
        if engine.last_step_seconds > 0:
            answer.since_last_step.CopyFrom(duration(now_seconds - engine.last_step_seconds))
        if engine.tiers is not None:
            answer.tiers.CopyFrom(_tiers_message(engine.tiers))
        if engine.vitals is not None:
            _add_vitals(answer, engine.vitals)
    answer.flight.CopyFrom(_flight_message(stats))
    if stats.faults is not None:
        answer.faults.ordered = stats.faults.ordered
        answer.faults.strikes_total = stats.faults.strikes
        answer.faults.SetInParent()
    return answer


def pressure_message(stats: FrontStats) -> pb.WatchPressureResponse:
    answer = pb.WatchPressureResponse(
        time=_now(),
        level=pb.PressureLevel.ValueType(stats.pressure),
        waiting_requests=stats.waiting_requests,
        suggested_retry_delay=duration(stats.suggested_retry_seconds),
    )
    if (engine := stats.engine) is not None:
        answer.utilization = engine.held_share
        answer.blocks.CopyFrom(blocks_message(stats, engine))
        if engine.vitals is not None:
            _add_vitals(answer, engine.vitals)
    return answer


def blocks_message(stats: FrontStats, engine: EngineStats) -> pb.BlockStats:
    """The pool as `engine`, the engine's part of `stats`, sees it."""
    return pb.BlockStats(
        total=engine.blocks_total,
        free=engine.blocks_free,
        cached=engine.blocks_cached,
        # The engine counts promised blocks among the held ones, the API beside them.
        active=engine.blocks_held - engine.blocks_reserved,
        reserved=engine.blocks_reserved,
        shared=engine.blocks_shared,
        bytes_per_block=stats.bytes_per_block,
        max_total=stats.max_blocks,
        kept=engine.blocks_kept,
    )


def _tiers_message(tiers: TierFigures) -> pb.TierStats:
    return pb.TierStats(
        host_used_bytes=tiers.host_bytes,
        host_capacity_bytes=tiers.host_capacity_bytes,
        disk_used_bytes=tiers.disk_bytes,
        disk_capacity_bytes=tiers.disk_capacity_bytes,
        spilled_blocks_total=tiers.spilled_blocks,
        lost_blocks_total=tiers.lost_blocks,
        loaded_blocks_total=tiers.loaded_blocks,
        open_loads=tiers.loads,
        expired_loads_total=tiers.expired_loads,
        dropped_blocks_total=tiers.dropped_blocks,
        failures_total=tiers.failures,
    )


def _add_vitals(answer: pb.GetStatsResponse | pb.WatchPressureResponse, vitals: Vitals) -> None:
    answer.memory.CopyFrom(
        pb.MemoryLedger(
            total_bytes=vitals.device_total_bytes,
            free_bytes=vitals.device_free_bytes,
            weights_bytes=vitals.weights_bytes,
            kv_pool_bytes=vitals.kv_bytes,
            activation_bytes=vitals.activation_bytes,
            graph_bytes=vitals.graph_bytes,
            context_bytes=vitals.context_bytes,
            other_bytes=vitals.other_bytes,
            reclaimable_bytes=vitals.reclaimable_bytes,
            headroom_bytes=vitals.headroom_bytes,
            demand_bytes=vitals.demand_bytes,
            host_available_bytes=vitals.host_available_bytes,
            allocator_retries_total=vitals.allocator_retries,
        )
    )
    narrowings, closings, shrinks, growths = vitals.actions
    answer.governor.CopyFrom(
        pb.GovernorStats(
            kv_exhaustion=_forecast(vitals.kv_exhaustion_seconds),
            device_exhaustion=_forecast(vitals.device_exhaustion_seconds),
            step_tokens=vitals.step_tokens,
            prefill_tokens=vitals.prefill_tokens,
            admits=vitals.admits,
            pool_goal_blocks=vitals.pool_goal_blocks,
            pool_ceiling_blocks=vitals.pool_ceiling_blocks,
            narrowings_total=narrowings,
            closings_total=closings,
            shrinks_total=shrinks,
            growths_total=growths,
        )
    )
    retries, oom_shrinks, requeues, failures = vitals.rungs
    answer.oom_rungs.CopyFrom(
        pb.OomRungs(
            retries_total=retries,
            shrinks_total=oom_shrinks,
            requeues_total=requeues,
            failures_total=failures,
        )
    )


def _forecast(seconds: float) -> Duration | None:
    return None if seconds >= FOREVER_SECONDS else duration(seconds)


def _flight_message(stats: FrontStats) -> pb.FlightStats:
    message = pb.FlightStats(
        records=stats.flight_records,
        last_cause=stats.last_flight_cause or "",
        lost_records_total=stats.lost_flight_records,
    )
    if stats.last_flight_time is not None:
        message.last_time.FromDatetime(stats.last_flight_time)
    return message


def _now() -> Timestamp:
    now = Timestamp()
    now.GetCurrentTime()
    return now
