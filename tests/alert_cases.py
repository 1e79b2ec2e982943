"""When each alert fires and when it does not, on both sides of its thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCRAPE_SECONDS = 5
_SERVER = 'namespace="prod",model="m",pod="p-0",instance="10.0.0.1:9002"'
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Case:
    """What is scraped every 5 s, and whether the alert fires at a time."""

    alert: str
    fires: bool
    at_seconds: int
    series: Mapping[str, str]  # values as promtool writes them, by name and labels
    why: str


def case(
    alert: str, fires: bool, at_seconds: int, why: str, /, **series: str | Mapping[str, str]
) -> Case:
    """Series by metric without its prefix: values, or values by further labels."""
    expanded = {}
    for name, values in series.items():
        full = name if name == "up" else f"plimsoll_{name}"
        by_labels = {"": values} if isinstance(values, str) else values
        for labels, text in by_labels.items():
            expanded[f"{full}{{{_SERVER}{',' if labels else ''}{labels}}}"] = text
    return Case(f"Plimsoll{alert}", fires, at_seconds, expanded, why)


def _always(value: float) -> str:
    return f"{value:.12g}x800"


def _ramp(start: float, step: float) -> str:
    """`step` for each scrape."""
    return f"{start:.12g}{'+' if step >= 0 else '-'}{abs(step):.12g}x800"


def _jump(at_scrape: int, before: float, after: float) -> str:
    return f"{before:.12g}x{at_scrape - 1} {after:.12g}x800"


def _pulse(at_scrape: int, scrapes: int, before: float, between: float) -> str:
    return f"{before:.12g}x{at_scrape - 1} {between:.12g}x{scrapes - 1} {before:.12g}x800"


def _without(at_scrape: int, scrapes: int, value: float) -> str:
    """Not there for so many scrapes, as figures of memory while an engine is replaced."""
    return f"{value:.12g}x{at_scrape - 1} stale _x{scrapes - 1} {value:.12g}x800"


def _owned(others: str, kv_pool: str = _always(10 * _GIB)) -> dict[str, str]:
    return {'owner="others"': others, 'owner="kv_pool"': kv_pool}


_ROOM = {
    "device_headroom_bytes": _always(4 * _GIB),
    "device_memory_capacity_bytes": _always(80 * _GIB),
}
_WIDE = {
    "device_headroom_bytes": _always(40 * _GIB),
    "device_memory_capacity_bytes": _always(80 * _GIB),
}

DEVICE = (
    case(
        *("MemoryLeakForecast", True, 1500, "10 GiB of spare memory fall by 8 MiB a second"),
        device_headroom_bytes=_always(2 * _GIB),
        device_memory_owned_bytes=_owned(_always(0), _ramp(12 * _GIB, -40 * 2**20)),
        device_demand_bytes=_always(_GIB),
    ),
    case(
        *("MemoryLeakForecast", False, 1500, "what the pool gives up is headroom"),
        device_headroom_bytes=_ramp(2 * _GIB, 20 * 2**20),
        device_memory_owned_bytes=_owned(_always(0), _ramp(12 * _GIB, -20 * 2**20)),
        device_demand_bytes=_always(_GIB),
    ),
    # At the time at which it would fire if the device were told as free meanwhile.
    case(
        *("MemoryLeakForecast", False, 1600, "an engine is replaced, and the next has as much"),
        device_headroom_bytes=_without(120, 36, 3 * _GIB),
        device_memory_owned_bytes=_owned(
            _without(120, 36, _GIB), kv_pool=_without(120, 36, 40 * _GIB)
        ),
        device_memory_capacity_bytes=_without(120, 36, 141 * _GIB),
        device_demand_bytes=_without(120, 36, _GIB),
    ),
    case(
        *("OthersTakeMemory", True, 60, "7 % of the device within a minute"),
        device_memory_owned_bytes=_owned(_ramp(0, 0.45 * _GIB)),
        device_memory_capacity_bytes=_always(80 * _GIB),
    ),
    case(
        *("OthersTakeMemory", False, 600, "others have half of it, but for long"),
        device_memory_owned_bytes=_owned(_always(40 * _GIB)),
        device_memory_capacity_bytes=_always(80 * _GIB),
    ),
    case(
        *("OthersTakeMemory", False, 120, "3 % within two minutes"),
        device_memory_owned_bytes=_owned(_ramp(_GIB, 0.1 * _GIB)),
        device_memory_capacity_bytes=_always(80 * _GIB),
    ),
    case(
        *("PoolBelowCeiling", True, 70, "the governor wants a fifth back"),
        kv_goal_blocks=_jump(12, 1000, 800),
        kv_ceiling_blocks=_always(1000),
    ),
    case(
        *("PoolBelowCeiling", False, 70, "an operator ordered a smaller pool"),
        kv_goal_blocks=_jump(12, 1000, 500),
        kv_ceiling_blocks=_jump(12, 1000, 500),
    ),
    case(
        *("PoolBelowCeiling", False, 600, "hardly smaller"),
        kv_goal_blocks=_always(910),
        kv_ceiling_blocks=_always(1000),
    ),
    case(
        *("AllocatorFragmented", True, 180, "a fifth in pieces, 5 % left"),
        allocator_inactive_bytes=_always(2 * _GIB),
        allocator_reserved_bytes=_always(10 * _GIB),
        **_ROOM,
    ),
    case(
        *("AllocatorFragmented", False, 600, "a fifth in pieces, half of the device left"),
        allocator_inactive_bytes=_always(2 * _GIB),
        allocator_reserved_bytes=_always(10 * _GIB),
        **_WIDE,
    ),
    case(
        *("AllocatorFragmented", False, 600, "a tenth in pieces"),
        allocator_inactive_bytes=_always(_GIB),
        allocator_reserved_bytes=_always(10 * _GIB),
        **_ROOM,
    ),
    case(
        *("DeviceExhaustionNear", True, 75, "a climb over 90 s"),
        device_time_to_exhaustion_seconds=_jump(12, 86400, 90),
        **_ROOM,
    ),
    case(
        *("DeviceExhaustionNear", False, 300, "130 s"),
        device_time_to_exhaustion_seconds=_always(130),
        **_ROOM,
    ),
    case(
        *("DeviceExhaustionNear", False, 600, "half of the device is left"),
        device_time_to_exhaustion_seconds=_always(90),
        **_WIDE,
    ),
    case(
        *("DeviceExhaustionNear", False, 65, "one sample between others, of a step that took"),
        device_time_to_exhaustion_seconds=_pulse(12, 1, 86400, 20),
        **_ROOM,
    ),
    case(
        *("DeviceExhaustionImminent", True, 70, "20 s"),
        device_time_to_exhaustion_seconds=_jump(12, 86400, 20),
        **_ROOM,
    ),
    case(
        *("DeviceExhaustionImminent", False, 600, "31 s"),
        device_time_to_exhaustion_seconds=_always(31),
        **_ROOM,
    ),
    case(
        *("DeviceExhaustionImminent", False, 600, "half of the device is left"),
        device_time_to_exhaustion_seconds=_always(20),
        **_WIDE,
    ),
    case(
        *("HeadroomThin", True, 70, "5 % more than a step"),
        device_headroom_low_bytes=_jump(12, 4e9, 1.05e9),
        device_demand_high_bytes=_always(1e9),
    ),
    case(
        *("HeadroomThin", False, 600, "15 % more than a step"),
        device_headroom_low_bytes=_always(1.15e9),
        device_demand_high_bytes=_always(1e9),
    ),
    case(
        *("HeadroomBelowDemand", True, 60, "at once"),
        device_headroom_low_bytes=_jump(12, 4e9, 0.99e9),
        device_demand_bytes=_always(1e9),
    ),
    case(
        *("HeadroomBelowDemand", False, 70, "the governor made the step small enough"),
        device_headroom_low_bytes=_jump(12, 4e9, 0.99e9),
        device_demand_bytes=_jump(12, 1e9, 0.5e9),
    ),
    case(
        *("HeadroomBelowDemand", False, 70, "the engine that had too little is gone"),
        device_headroom_low_bytes=_without(12, 36, 0.99e9),
        device_demand_bytes=_without(12, 36, 1e9),
    ),
    case(
        *("PressureCritical", True, 60, "at once"),
        pressure_level=_jump(12, 1, 4),
        admissions_open=_jump(12, 1, 0),
    ),
    case(
        *("PressureCritical", False, 600, "high for long"),
        pressure_level=_always(3),
        admissions_open=_always(1),
    ),
    case(
        *("PressureCritical", False, 600, "the queue is full, and memory is not short"),
        pressure_level=_always(4),
        admissions_open=_always(1),
    ),
    case(
        *("PressureCritical", False, 70, "the engine that was short of memory is gone"),
        pressure_level=_always(4),
        admissions_open=_without(12, 36, 0),
    ),
    case(*("AdmissionsClosed", True, 70, "for 10 s"), admissions_open=_jump(12, 1, 0)),
    case(*("AdmissionsClosed", False, 600, "open"), admissions_open=_always(1)),
    case(
        *("AdmissionsClosed", False, 70, "the engine that had closed them is gone"),
        admissions_open=_without(12, 36, 0),
    ),
    case(
        *("AdmissionsClosed", False, 65, "closed at one look"),
        admissions_open=_pulse(12, 1, 1, 0),
    ),
    case(*("AllocatorRetries", True, 60, "the first one"), allocator_retries_total=_jump(12, 0, 1)),
    case(
        *("AllocatorRetries", False, 600, "there was one when the server was young"),
        allocator_retries_total=_jump(6, 0, 1),
    ),
    case(
        *("AllocatorRetryStorm", True, 90, "seven at once"),
        allocator_retries_total=_jump(12, 0, 7),
    ),
    case(
        *("AllocatorRetryStorm", False, 90, "four at once"),
        allocator_retries_total=_jump(12, 0, 4),
    ),
)


def _blocks(active: int) -> dict[str, str]:
    return {
        'state="active"': _always(active),
        'state="reserved"': _always(30),
        'state="kept"': _always(0),
        'state="cached"': _always(900 - active),
        'state="free"': _always(70),
    }


def _preemptions(reason: str, per_scrape: float) -> dict[str, str]:
    return {
        f'mode="{mode}",reason="{known}"': _ramp(0, per_scrape if known == reason else 0)
        for mode in ("swap", "recompute")
        for known in ("kv_full", "pool_shrunk")
    }


def _preempted_at(at_scrape: int, times: int) -> dict[str, str]:
    return {'mode="swap",reason="kv_full"': _jump(at_scrape, 0, times)}


KV = (
    case(
        *("KvExhaustionNear", True, 75, "40 s, and 90 % of the pool held"),
        kv_time_to_exhaustion_seconds=_jump(12, 86400, 40),
        kv_blocks=_blocks(870),
        kv_capacity_blocks=_always(1000),
    ),
    case(
        *("KvExhaustionNear", False, 300, "70 s"),
        kv_time_to_exhaustion_seconds=_always(70),
        kv_blocks=_blocks(870),
        kv_capacity_blocks=_always(1000),
    ),
    case(
        *("KvExhaustionNear", False, 600, "40 s, but half of the pool is cached"),
        kv_time_to_exhaustion_seconds=_always(40),
        kv_blocks=_blocks(400),
        kv_capacity_blocks=_always(1000),
    ),
    case(
        *("KvExhaustionNear", False, 600, "full, and does not grow"),
        kv_time_to_exhaustion_seconds=_always(86400),
        kv_blocks=_blocks(900),
        kv_capacity_blocks=_always(1000),
    ),
    case(
        *("KvPoolNearlyFull", True, 100, "3 % left"),
        kv_free_low_blocks=_jump(12, 500, 30),
        kv_capacity_blocks=_always(1000),
    ),
    case(
        *("KvPoolNearlyFull", False, 600, "6 % left"),
        kv_free_low_blocks=_always(60),
        kv_capacity_blocks=_always(1000),
    ),
    case(
        *("PreemptionsFrequent", True, 200, "one for seven requests"),
        preemptions_total=_preemptions("kv_full", 0.15),
        requests_finished_total={
            'outcome="completed"': _ramp(0, 1),
            'outcome="cancelled"': _ramp(0, 1),
        },
    ),
    case(
        *("PreemptionsFrequent", True, 200, "and no request ends any more"),
        preemptions_total=_preemptions("kv_full", 0.5),
        requests_finished_total={'outcome="completed"': _always(7)},
    ),
    case(
        *("PreemptionsFrequent", True, 100, "five at once, and eight requests in two minutes"),
        preemptions_total=_preempted_at(12, 5),
        requests_finished_total={'outcome="completed"': _ramp(0, 1 / 3)},
    ),
    case(
        *("PreemptionsFrequent", False, 100, "one, and eight requests in two minutes"),
        preemptions_total=_preempted_at(12, 1),
        requests_finished_total={'outcome="completed"': _ramp(0, 1 / 3)},
    ),
    case(
        *("PreemptionsFrequent", False, 100, "one, and no request ends"),
        preemptions_total=_preempted_at(12, 1),
        requests_finished_total={'outcome="completed"': _always(7)},
    ),
    case(
        *("PreemptionsFrequent", False, 100, "four, and no request ends"),
        preemptions_total=_preempted_at(12, 4),
        requests_finished_total={'outcome="completed"': _always(7)},
    ),
    case(
        *("PreemptionsFrequent", False, 600, "one for twelve requests"),
        preemptions_total=_preemptions("kv_full", 0.08),
        requests_finished_total={'outcome="completed"': _ramp(0, 2)},
    ),
    case(
        *("PreemptedForDeviceMemory", True, 60, "the pool shrank"),
        preemptions_total=_preemptions("pool_shrunk", 1),
    ),
    case(
        *("PreemptedForDeviceMemory", False, 600, "the pool was full, which is no lack of memory"),
        preemptions_total=_preemptions("kv_full", 5),
    ),
    case(
        *("SwapPingPong", True, 200, "2 % of the pool a second, both ways"),
        swap_bytes_total={
            'direction="out"': _ramp(0, 120e6),
            'direction="in"': _ramp(0, 100e6),
        },
        kv_capacity_blocks=_always(1000),
        kv_block_size_bytes=_always(1e6),
    ),
    case(
        *("SwapPingPong", False, 300, "0.7 % of the pool a second, both ways"),
        swap_bytes_total={'direction="out"': _ramp(0, 35e6), 'direction="in"': _ramp(0, 35e6)},
        kv_capacity_blocks=_always(1000),
        kv_block_size_bytes=_always(1e6),
    ),
    case(
        *("SwapPingPong", False, 600, "out, but not in again"),
        swap_bytes_total={'direction="out"': _ramp(0, 120e6), 'direction="in"': _always(0)},
        kv_capacity_blocks=_always(1000),
        kv_block_size_bytes=_always(1e6),
    ),
)


def _refused(queue_full: float, draining: float) -> dict[str, str]:
    return {
        'reason="queue_full"': _ramp(0, queue_full),
        'reason="draining"': _ramp(0, draining),
    }


def _live(running: str, waiting: str) -> dict[str, str]:
    return {'state="running"': running, 'state="waiting"': waiting}


def _histogram(fast: str, all_of_them: str) -> dict[str, str]:
    return {'le="0.1"': fast, 'le="0.5"': all_of_them, 'le="+Inf"': all_of_them}


_HOUR_SCRAPES = 3600 // SCRAPE_SECONDS

SERVING = (
    case(
        *("RefusalsFrequent", True, 240, "a tenth"),
        requests_refused_total=_refused(1, 0),
        requests_admitted_total=_ramp(0, 9),
    ),
    case(
        *("RefusalsFrequent", False, 600, "the server drains"),
        requests_refused_total=_refused(0, 5),
        requests_admitted_total=_ramp(0, 9),
    ),
    case(
        *("RefusalsFrequent", False, 600, "4 %"),
        requests_refused_total=_refused(4, 0),
        requests_admitted_total=_ramp(0, 96),
    ),
    case(
        *("QueueGrows", True, 240, "by one in 75 s"),
        live_requests=_live(_always(4), _ramp(10, 0.066)),
    ),
    case(
        *("QueueGrows", False, 300, "by one in two minutes"),
        live_requests=_live(_always(4), _ramp(10, 0.04)),
    ),
    case(
        *("QueueGrows", False, 600, "long, and stays so"),
        live_requests=_live(_always(4), _always(100)),
    ),
    case(
        *("QueueGrows", False, 240, "grows, and is short"),
        live_requests=_live(_always(400), _ramp(10, 1)),
    ),
    case(
        *("InterTokenLatencySpike", True, 3600 + 300, "0.5 s after 0.1 s"),
        inter_token_latency_seconds_bucket=_histogram(
            f"0+100x{_HOUR_SCRAPES} {100 * _HOUR_SCRAPES}x200", _ramp(0, 100)
        ),
    ),
    case(
        *("InterTokenLatencySpike", False, 3600 + 300, "as an hour ago, which was slow"),
        inter_token_latency_seconds_bucket=_histogram(_always(0), _ramp(0, 100)),
    ),
    case(
        *("InterTokenLatencySpike", False, 600, "there was no server an hour ago"),
        inter_token_latency_seconds_bucket=_histogram(_always(0), _ramp(0, 100)),
    ),
    case(
        *("EventLoopLag", True, 240, "two in a hundred take longer than 0.1 s"),
        event_loop_lag_seconds_bucket=_histogram(_ramp(0, 96), _ramp(0, 100)),
    ),
    case(
        *("EventLoopLag", False, 600, "the 99th of a hundred takes 0.17 s"),
        event_loop_lag_seconds_bucket=_histogram(_ramp(0, 98.8), _ramp(0, 100)),
    ),
    case(
        *("StreamsReadSlowly", True, 240, "6 of 10"),
        slow_streams=_always(6),
        live_requests=_live(_always(8), _always(2)),
    ),
    case(
        *("StreamsReadSlowly", False, 600, "4 of 10"),
        slow_streams=_always(4),
        live_requests=_live(_always(8), _always(2)),
    ),
    case(
        *("StreamsReadSlowly", False, 600, "nobody is there"),
        slow_streams=_always(0),
        live_requests=_live(_always(0), _always(0)),
    ),
)


def _rungs(retry: str, fail: str) -> dict[str, str]:
    return {'rung="retry"': retry, 'rung="fail"': fail}


FACTS = (
    case(
        *("OutOfMemory", True, 60, "the first one"),
        oom_rungs_total=_rungs(_jump(12, 0, 1), _always(0)),
    ),
    case(
        *("OutOfMemory", False, 600, "there were some when the server was young"),
        oom_rungs_total=_rungs(_jump(6, 0, 7), _always(0)),
    ),
    case(
        *("RequestLostToMemory", True, 60, "the last rung"),
        oom_rungs_total=_rungs(_always(3), _jump(12, 0, 1)),
    ),
    case(
        *("RequestLostToMemory", False, 60, "the first rung helped"),
        oom_rungs_total=_rungs(_jump(12, 0, 3), _always(0)),
    ),
    case(
        *("RestartAfterOutOfMemory", True, 500, "four minutes after"),
        server_start_timestamp_seconds=_always(350),
        last_oom_timestamp_seconds=_always(100),
    ),
    case(
        *("RestartAfterOutOfMemory", False, 500, "six minutes after"),
        server_start_timestamp_seconds=_always(460),
        last_oom_timestamp_seconds=_always(100),
    ),
    case(
        *("RestartAfterOutOfMemory", False, 1000, "the restart was long ago"),
        server_start_timestamp_seconds=_always(160),
        last_oom_timestamp_seconds=_always(100),
    ),
    case(
        *("RestartAfterOutOfMemory", False, 200, "the running server ran out of memory, and lives"),
        server_start_timestamp_seconds=_always(100),
        last_oom_timestamp_seconds=_always(160),
    ),
    case(
        *("RestartAfterOutOfMemory", False, 1000, "it never ran out of memory"),
        server_start_timestamp_seconds=_always(900),
        last_oom_timestamp_seconds=_always(0),
    ),
    case(*("EngineRestarted", True, 60, "once"), engine_restarts_total=_jump(12, 0, 1)),
    case(*("EngineRestarted", False, 900, "long ago"), engine_restarts_total=_jump(12, 0, 1)),
    case(*("EngineCrashLoop", True, 400, "four times"), engine_restarts_total=_jump(40, 0, 4)),
    case(*("EngineCrashLoop", False, 400, "twice"), engine_restarts_total=_jump(40, 0, 2)),
    case(
        *("ServerCrashLoop", True, 400, "three starts"),
        server_start_timestamp_seconds="1x10 60x10 120x10 180x800",
    ),
    case(
        *("ServerCrashLoop", False, 400, "two starts"),
        server_start_timestamp_seconds="1x10 60x10 120x800",
    ),
    case(
        *("RequestKillsEngines", True, 60, "one"),
        requests_finished_total={'outcome="engine_crashed"': _jump(12, 0, 1)},
    ),
    case(
        *("RequestKillsEngines", False, 60, "lost with its engine, which is not its doing"),
        requests_finished_total={
            'outcome="engine_crashed"': _always(0),
            'outcome="engine_lost"': _jump(12, 0, 1),
        },
    ),
)

BLINDNESS = (
    case(
        *("MemorySampleOld", True, 120, "for 60 s"),
        memory_sample_timestamp_seconds="0+5x12 60x800",
    ),
    case(
        *("MemorySampleOld", False, 600, "always 20 s old"),
        memory_sample_timestamp_seconds=_ramp(-20, 5),
    ),
    case(
        *("MemorySampleOld", False, 600, "the first engine loads its model"),
        server_state={'state="starting"': _always(1)},
    ),
    case(
        *("MemorySampleOld", False, 150, "an engine is replaced"),
        memory_sample_timestamp_seconds="0+5x11 stale _x35 240+5x800",
    ),
    case(
        *("GpuSampleOld", True, 120, "for 60 s"),
        gpu_sample_timestamp_seconds="0+5x12 60x800",
    ),
    case(*("GpuSampleOld", False, 600, "there is no GPU"), nvml_available=_always(0)),
    case(
        *("GpuSampleOld", False, 600, "always 20 s old"),
        gpu_sample_timestamp_seconds=_ramp(-20, 5),
    ),
    case(*("TargetDown", True, 100, "for 40 s"), up={'job="plimsoll"': _jump(12, 1, 0)}),
    case(*("TargetDown", False, 75, "two scrapes"), up={'job="plimsoll"': _pulse(12, 2, 1, 0)}),
    case(*("TargetDown", False, 600, "it is another job"), up={'job="other"': _always(0)}),
    case(*("TargetAbsent", True, 180, "there are other jobs"), up={'job="other"': _always(1)}),
    case(*("TargetAbsent", False, 600, "down, but known"), up={'job="plimsoll"': _always(0)}),
    case(
        *("FlightRecordsLost", True, 60, "one"),
        flight_lost_records_total=_jump(12, 0, 1),
    ),
    case(
        *("FlightRecordsLost", False, 900, "long ago"),
        flight_lost_records_total=_jump(12, 0, 1),
    ),
)

CASES = (*DEVICE, *KV, *SERVING, *FACTS, *BLINDNESS)

# Others take memory from 60 s on, and at 150 s a step finds none. The pool gives way from 75 s on,
# until it can no more.
CLIMB_BEGIN_SECONDS = 60
CLIMB_END_SECONDS = 150
CLIMB = case(
    *("OutOfMemory", True, CLIMB_END_SECONDS, "a climb of 90 s"),
    device_memory_capacity_bytes=_always(80 * _GIB),
    device_memory_owned_bytes=_owned(
        f"0x11 0+{_GIB // 2}x18 {9 * _GIB}x800", f"{10 * _GIB}x14 {10 * _GIB}-{_GIB // 2}x800"
    ),
    kv_ceiling_blocks=_always(1000),
    kv_goal_blocks="1000x14 1000-50x14 300x800",
    device_time_to_exhaustion_seconds="86400x11 90-5x18 0x800",
    device_headroom_bytes=f"{2 * _GIB}x26 {_GIB}x800",
    device_headroom_low_bytes=f"{2 * _GIB}x26 {_GIB}x800",
    device_demand_bytes=_always(1.5 * _GIB),
    device_demand_high_bytes=_always(1.5 * _GIB),
    pressure_level="1x14 2x8 3x3 4x800",
    admissions_open="1x27 0x800",
    oom_rungs_total=_rungs(_jump(CLIMB_END_SECONDS // SCRAPE_SECONDS, 0, 1), _always(0)),
)
# Seconds before the end of the climb at which each of these fires by then.
CLIMB_LEADS = {
    "PlimsollOthersTakeMemory": 45,
    "PlimsollPoolBelowCeiling": 45,
    "PlimsollDeviceExhaustionNear": 45,
    "PlimsollDeviceExhaustionImminent": 15,
    "PlimsollHeadroomBelowDemand": 10,
    "PlimsollPressureCritical": 10,
}
