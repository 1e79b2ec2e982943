"""Show what a running server is doing: requests, KV cache, counters.

Asks the admin port, which is a port of its own."""

from __future__ import annotations

import argparse

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
    for name, value in _rows(stats).items():
        print(f"{name:<12} {value}")
    return 0


def _rows(stats: engine_admin_pb2.GetStatsResponse) -> dict[str, str]:
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
    return rows


def _tiers_row(tiers: engine_admin_pb2.TierStats) -> str:
    parts = [f"host {tiers.host_used_bytes / 1e6:.0f} of {tiers.host_capacity_bytes / 1e6:.0f} MB"]
    if tiers.disk_capacity_bytes:
        used, most = tiers.disk_used_bytes / 1e6, tiers.disk_capacity_bytes / 1e6
        parts.append(f"disk {used:.0f} of {most:.0f} MB")
    parts.append(f"{tiers.loaded_blocks_total} blocks loaded, {tiers.spilled_blocks_total} spilled")
    parts.append(f"{tiers.lost_blocks_total + tiers.dropped_blocks_total} lost")
    parts.append(f"{tiers.failures_total} failures")
    return ", ".join(parts)
