"""Play a recorded trace through the cache manager, without a model or a server.

The trace is Mooncake's JSON lines (timestamp in ms, input_length, output_length, hash_ids)
or Azure's CSV (TIMESTAMP, ContextTokens, GeneratedTokens), gzipped or not. Requests arrive as
recorded at a simulated engine with continuous batching; time is computed from the figures
below, not measured, so that the same flags always give the same result. Only prompts can hit
the cache: a trace does not tell which output became part of a later prompt.

With --in-order time and outputs are left out: every prompt is put whole into the cache, one
after the other. That is how hit ratios of eviction policies are published."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.cli.values import number, positive, whole

EXAMPLES = """\
examples:
  plimsoll replay conversation_trace.jsonl.gz --blocks 30000 --block-tokens 512 --in-order \\
      --policy lru
  plimsoll replay conversation_trace.jsonl.gz --blocks 3000 --block-tokens 512 \\
      --prefill-rate 50000 --step-tokens 8192 --plot replay.png
  plimsoll replay AzureLLMInferenceTrace_conv.csv.gz --blocks 20000 --requests 2000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s TRACE [options]"
    parser.add_argument("trace", type=Path, metavar="TRACE", help="the file to play")
    _add_trace(parser.add_argument_group("trace"))
    _add_pool(parser.add_argument_group("pool"))
    _add_engine(parser.add_argument_group("engine"))
    _add_results(parser.add_argument_group("results"))


def _add_trace(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--in-order", action="store_true", help="prompts one after the other, without time"
    )
    group.add_argument(
        "-n", "--requests", type=whole(1), metavar="N", help="only the first N (default: all)"
    )
    group.add_argument(
        "--speed",
        type=positive,
        default=1.0,
        metavar="X",
        help="requests arrive X times as fast as recorded (default 1)",
    )
    group.add_argument(
        "--trace-block-tokens",
        type=whole(1),
        default=512,
        metavar="TOKENS",
        help="behind one hash id of the trace (default 512)",
    )


def _add_pool(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--blocks", type=whole(1), default=65_536, metavar="N", help="of the pool (default 65536)"
    )
    group.add_argument(
        "--block-tokens",
        type=whole(1),
        default=16,
        metavar="TOKENS",
        help="slots of a block (default 16)",
    )
    group.add_argument(
        "--policy",
        choices=("reuse-aware", "lru"),
        default="reuse-aware",
        help="which cached blocks are evicted (default reuse-aware)",
    )
    group.add_argument(
        "--load-line",
        type=number(0.01, 1),
        default=0.9,
        metavar="SHARE",
        help="of the pool above which nothing is admitted, 0.01 to 1 (default 0.9)",
    )


def _add_engine(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-running",
        type=whole(1),
        default=64,
        metavar="N",
        help="most sequences in the batch (default 64)",
    )
    group.add_argument(
        "--step-tokens",
        type=whole(2),
        default=2048,
        metavar="TOKENS",
        help="most tokens of a step, more than --max-running (default 2048)",
    )
    group.add_argument(
        "--prefill-rate",
        type=positive,
        default=10_000.0,
        metavar="R",
        help="prompt tokens computed per second (default 10000)",
    )
    group.add_argument(
        "--decode-step-ms",
        type=positive,
        default=25.0,
        metavar="MS",
        help="time of a step beside its prefill (default 25)",
    )


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    group.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw pool, queue and hits over time to a .png, .svg or .pdf (needs the extra"
        " `bench`; not with --in-order)",
    )


def run(arguments: argparse.Namespace) -> int:
    from service.cli.replay_run import run_replay

    return run_replay(arguments)
