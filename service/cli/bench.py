"""Put load on a running server and measure it.

Closed loop (--concurrency): a fixed number of clients, each with one request at a time;
measures what the server can do. Open loop (--rate): Poisson arrivals at a fixed rate,
whatever the server does; measures what users feel at that rate.

What is asked comes from a prompt file (.txt: one prompt a line; .jsonl: `prompt` or
`turns`), from the lengths of a trace (Azure CSV, Mooncake JSON lines; files may be
gzipped), or is random tokens of the lengths given. Random tokens make the model answer
nonsense of exact length when the server runs with --allow-ignore-eos; otherwise answers may
end early.

TTFT is the time from sending to the first token, ITL the time between tokens (k tokens in
one message share the gap before it), both as this client sees them. Ctrl-C stops and shows
what was measured so far."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.cli.remote import add_server_arguments
from service.cli.values import number, positive, whole

EXAMPLES = """\
examples:
  plimsoll bench --concurrency 8 --requests 64 --prompt-tokens 512 --output-tokens 128
  plimsoll bench --rate 2 --duration 60 --prompts questions.jsonl --chat
  plimsoll bench --trace conversation_trace.jsonl.gz --length-scale 0.1 --concurrency 4
  plimsoll bench --shared-prefix-tokens 1024 --shared-prefix-share 0.8 --prompt-tokens 1100
  plimsoll bench --rate 4 --slo-ttft-ms 500 --slo-itl-ms 60 --json run.json --plot run.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    _add_load(parser.add_argument_group("load"))
    _add_prompts(parser.add_argument_group("prompts"))
    _add_results(parser.add_argument_group("results"))
    add_server_arguments(parser)


def _add_load(group: argparse._ArgumentGroup) -> None:
    pace = group.add_mutually_exclusive_group()
    pace.add_argument(
        "-c",
        "--concurrency",
        type=whole(1),
        metavar="CLIENTS",
        help="closed loop with this many clients (default, with 4)",
    )
    pace.add_argument(
        "-r", "--rate", type=positive, metavar="R", help="open loop with R requests per second"
    )
    group.add_argument(
        "-n",
        "--requests",
        type=whole(1),
        metavar="N",
        help="send this many (default 64, no limit with --duration)",
    )
    group.add_argument(
        "-d",
        "--duration",
        type=positive,
        metavar="SECONDS",
        help="send for this long, then wait for the running ones",
    )
    group.add_argument(
        "--warmup",
        type=whole(0),
        metavar="N",
        default=2,
        help="short requests before the measurement (default 2)",
    )
    group.add_argument(
        "--seed", type=whole(0), default=0, help="of arrivals and random tokens (default 0)"
    )


def _add_prompts(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--prompts", type=Path, metavar="FILE", help="prompts from a file, again from the start"
    )
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="lengths and shared blocks from a trace"
    )
    group.add_argument(
        "--chat", action="store_true", help="send the prompts of a file as questions of a chat"
    )
    group.add_argument(
        "--length-scale",
        type=positive,
        default=1.0,
        metavar="X",
        help="multiply the lengths of a trace (default 1)",
    )
    group.add_argument(
        "--prompt-tokens",
        type=whole(1),
        default=256,
        metavar="TOKENS",
        help="length of a random prompt (default 256)",
    )
    group.add_argument(
        "--output-tokens",
        type=whole(1),
        metavar="TOKENS",
        help="length of an answer (default: that of the trace, else 128)",
    )
    group.add_argument(
        "--shared-prefix-tokens",
        type=whole(0),
        default=0,
        metavar="TOKENS",
        help="leading tokens of random prompts that are the same (default 0)",
    )
    group.add_argument(
        "--shared-prefix-share",
        type=number(0, 1),
        default=1.0,
        metavar="SHARE",
        help="share of the requests that begin with them, 0 to 1 (default 1)",
    )
    group.add_argument(
        "--cache-salt",
        metavar="TEXT",
        help="share the prefix cache with requests of this salt (default: a salt of its own, "
        "so that a run finds nothing of the one before)",
    )
    group.add_argument(
        "--temperature",
        type=number(0, 2),
        default=0.0,
        metavar="T",
        help="0 is greedy (default 0)",
    )


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo-ttft-ms", type=positive, metavar="MS", help="goodput: longest good TTFT"
    )
    group.add_argument(
        "--slo-itl-ms",
        type=positive,
        metavar="MS",
        help="goodput: longest good mean ITL of a request",
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    group.add_argument(
        "--json-requests",
        action="store_true",
        help="with --json: every request with the arrival of each message too",
    )
    group.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw TTFT, ITL and throughput to a .png, .svg or .pdf (needs the extra `bench`)",
    )


def run(arguments: argparse.Namespace) -> int:
    from service.cli.bench_run import run_bench

    return run_bench(arguments)
