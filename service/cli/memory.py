"""Grow or shrink the KV cache of a running server, while it serves.

SIZE is a share of the largest size, as 50%, or bytes, as 512MiB, or a number of blocks. The
largest size is that of the setting kv_memory_max_bytes. Asks the admin port."""

from __future__ import annotations

import argparse

from google.protobuf.duration_pb2 import Duration

from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.cli.failure import EXIT_OK
from service.cli.remote import add_admin_argument, translate_errors
from service.cli.values import number, whole
from service.client import PlimsollClient
from service.config.sources import parse_bytes

EXAMPLES = """\
examples:
  plimsoll memory 50%
  plimsoll memory 512MiB --preempt --time-limit 5
  plimsoll memory 2000                            # blocks
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s SIZE [options]"
    parser.add_argument("size", metavar="SIZE", type=size, help="as 50%%, 512MiB or 2000 (blocks)")
    parser.add_argument(
        "--preempt",
        action="store_true",
        help="take blocks from running requests, which are computed again later, instead of"
        " waiting until enough of them have ended",
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=number(0, 3600),
        help="answer after this time, whatever is in force (default: 30)",
    )
    add_admin_argument(parser)


def size(text: str) -> pb.SetMemoryUtilizationRequest:
    """An argument type: the request that asks for a size."""
    if text.endswith("%"):
        return pb.SetMemoryUtilizationRequest(memory_utilization=number(0, 100)(text[:-1]) / 100)
    if text.isdigit():
        return pb.SetMemoryUtilizationRequest(total_blocks=whole(1)(text))
    try:
        return pb.SetMemoryUtilizationRequest(memory_bytes=parse_bytes(text))
    except ValueError:
        limit = "is no share (50%), no bytes (512MiB) and no number of blocks"
        raise argparse.ArgumentTypeError(f"{text!r} {limit}") from None


def run(arguments: argparse.Namespace) -> int:
    request: pb.SetMemoryUtilizationRequest = arguments.size
    if arguments.preempt:
        request.shrink_policy = pb.SHRINK_POLICY_PREEMPT
    if arguments.time_limit is not None:
        limit = Duration()
        limit.FromNanoseconds(round(arguments.time_limit * 1e9))
        request.time_limit.CopyFrom(limit)

    async def work() -> pb.SetMemoryUtilizationResponse:
        async with PlimsollClient(admin_target=arguments.admin_server) as client:
            return await client.set_memory(request)

    answer = translate_errors(arguments.admin_server, work())
    after = answer.after
    print(
        f"{answer.before.total} -> {after.total} blocks"
        f" ({after.total * after.bytes_per_block / 1e6:.0f} MB), at most {after.max_total};"
        f" {answer.preempted_candidates} preempted,"
        f" {answer.elapsed.ToTimedelta().total_seconds():.1f} s"
    )
    return EXIT_OK
