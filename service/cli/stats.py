"""Show what a running server is doing: requests, KV cache, counters.

Asks the admin port, which is a port of its own."""

from __future__ import annotations

import argparse
from datetime import UTC

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToJson

from service.api.gen.plimsoll.v1 import engine_admin_pb2
from service.cli.remote import add_admin_argument, translate_errors
from service.cli.values import positive
from service.client import PlimsollClient

EXAMPLES = """\
examples:
  plimsoll stats
  watch -n 1 plimsoll stats
  plimsoll stats --json | jq .blocks
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    parser.add_argument(
        "--json", action="store_true", help="print GetStatsResponse in protobuf's JSON form"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=positive, help="give up after this time"
    )
    add_admin_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    async def work() -> engine_admin_pb2.GetStatsResponse:
        async with PlimsollClient(admin_target=arguments.admin_server) as client:
            return await client.stats(timeout_seconds=arguments.timeout)

    stats = translate_errors(arguments.admin_server, work())
    if arguments.json:
        print(MessageToJson(stats, always_print_fields_with_no_presence=True))
        return 0
    for name, value in stats_rows(stats).items():
        print(f"{name:<12} {value}")
    return 0


def stats_rows(stats: engine_admin_pb2.GetStatsResponse) -> dict[str, str]:
    """What a person wants to know, by subject."""
    blocks = stats.blocks
    pressure = engine_admin_pb2.PressureLevel.Name(stats.pressure)
    looked_up, hit = stats.prefix_lookup_tokens_total, stats.prefix_hit_tokens_total
    hit_rate = f"{hit / looked_up:.1%} of {looked_up} prompt tokens" if looked_up else "no lookups"
    rows = {
        "requests": f"{stats.running_requests} running, {stats.waiting_requests} waiting, "
        f"{stats.slow_streams} slow readers" + (", draining" if stats.draining else ""),
        "KV blocks": f"{blocks.active} active, {blocks.reserved} reserved, {blocks.cached} cached, "
        f"{blocks.kept} kept, {blocks.free} free of {blocks.total}"
        f" ({blocks.total * blocks.bytes_per_block / 1e6:.0f} MB)",
        "pressure": pressure.removeprefix("PRESSURE_LEVEL_").lower(),
        "prefix hits": hit_rate,
        "steps": f"{stats.steps_total}, {stats.step_time.ToTimedelta().total_seconds() * 1e3:.1f}"
        f" ms each, last {stats.since_last_step.ToTimedelta().total_seconds():.1f} s ago",
        "tokens": f"{stats.completion_tokens_total} generated",
        "since start": f"{stats.preemptions_total} preemptions ({stats.trims_total} of the "
        f"tail, {stats.swaps_total} swaps), {stats.evictions_total} evictions, "
        f"{stats.rejections_total} refusals, {stats.engine_restarts_total} engine restarts",
    }
    if stats.HasField("tiers"):
        rows["cache tiers"] = _tiers_row(stats.tiers)
    if stats.HasField("memory"):
        rows["memory"] = _memory_row(stats.memory)
        rows["governor"] = _governor_row(stats.governor)
        rows["shortages"] = _rungs_row(stats)
    if stats.flight.records:
        rows["records"] = f"{stats.flight.records}, the last of {_last_record(stats.flight)}"
    if stats.HasField("faults"):
        rows["faults"] = (
            f"allowed: {stats.faults.ordered} ordered, {stats.faults.strikes_total} carried out"
        )
    return rows


def _memory_row(memory: engine_admin_pb2.MemoryLedger) -> str:
    owners = {
        "weights": memory.weights_bytes,
        "KV pool": memory.kv_pool_bytes,
        "steps": memory.activation_bytes,
        "graphs": memory.graph_bytes,
        "runtime": memory.context_bytes,
        "others": memory.other_bytes,
    }
    parts = [f"{name} {_megabytes(size)}" for name, size in owners.items() if size]
    return (
        f"{', '.join(parts)} of {_megabytes(memory.total_bytes)} MB; headroom "
        f"{_megabytes(memory.headroom_bytes)} MB, the largest step takes "
        f"{_megabytes(memory.demand_bytes)} MB"
    )


def _governor_row(governor: engine_admin_pb2.GovernorStats) -> str:
    parts = [
        f"{governor.prefill_tokens} of {governor.step_tokens} tokens a step for prompts",
        f"pool of {governor.pool_goal_blocks} of {governor.pool_ceiling_blocks} blocks",
    ]
    if not governor.admits:
        parts.append("admission closed")
    if governor.HasField("kv_exhaustion"):
        parts.append(f"blocks for {_seconds(governor.kv_exhaustion)} s")
    if governor.HasField("device_exhaustion"):
        parts.append(f"memory for {_seconds(governor.device_exhaustion)} s")
    return ", ".join(parts)


def _rungs_row(stats: engine_admin_pb2.GetStatsResponse) -> str:
    rungs = stats.oom_rungs
    return (
        f"{rungs.retries_total} steps tried again, {rungs.shrinks_total} pool shrinks, "
        f"{rungs.requeues_total} requeues, {rungs.failures_total} requests failed, "
        f"{stats.memory.allocator_retries_total} allocator retries"
    )


def _last_record(flight: engine_admin_pb2.FlightStats) -> str:
    moment = flight.last_time.ToDatetime(UTC).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}: {flight.last_cause}"


def _seconds(forecast: Duration) -> str:
    return f"{forecast.ToTimedelta().total_seconds():.1f}"


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f}"


def _tiers_row(tiers: engine_admin_pb2.TierStats) -> str:
    parts = [f"host {tiers.host_used_bytes / 1e6:.0f} of {tiers.host_capacity_bytes / 1e6:.0f} MB"]
    if tiers.disk_capacity_bytes:
        used, most = tiers.disk_used_bytes / 1e6, tiers.disk_capacity_bytes / 1e6
        parts.append(f"disk {used:.0f} of {most:.0f} MB")
    parts.append(f"{tiers.loaded_blocks_total} blocks loaded, {tiers.spilled_blocks_total} spilled")
    parts.append(f"{tiers.lost_blocks_total + tiers.dropped_blocks_total} lost")
    parts.append(f"{tiers.failures_total} failures")
    return ", ".join(parts)
