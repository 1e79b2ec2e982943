"""Run a server out of memory, on purpose, and see whether anybody notices.

For a server that was started with --allow-faults and has no users. Live streams run all the
time, and each is compared with what the undisturbed server answered, token by token. Meanwhile
another process seems to take memory until none is free; allocations fail in the middle of
steps; memory comes back; the engine is killed; another engine freezes. Prints what happened
when, and a verdict: the exit status is 0 if the server passed, and 1 if it did not.

All faults are ended at the end, also after Ctrl-C. Uses the inference port and the admin port."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.cli.remote import add_admin_argument, add_server_arguments
from service.cli.values import number, whole

EXAMPLES = """\
examples:
  plimsoll serve --allow-faults --dtype float32 --device-memory-bytes 1600MiB
  plimsoll drill                                # in another terminal
  plimsoll drill --quick --streams 4
  plimsoll drill --json drill.json --plot drill.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    group = parser.add_argument_group("drill")
    group.add_argument("--quick", action="store_true", help="shorter phases: about half a minute")
    group.add_argument(
        "--streams",
        type=whole(1, 256),
        default=8,
        metavar="N",
        help="streams that run at once (default 8)",
    )
    group.add_argument(
        "--prompts",
        type=whole(1, 1024),
        default=16,
        metavar="N",
        help="different prompts, each about 150 tokens (default 16)",
    )
    group.add_argument(
        "--max-tokens",
        type=whole(1, 65536),
        default=128,
        metavar="TOKENS",
        help="longest answer, 1 to 65536 (default 128)",
    )
    group.add_argument(
        "--balloon",
        type=number(0, 1),
        default=0.5,
        metavar="SHARE",
        help="share of the KV pool that other processes take on top of all that is free, 0 to 1"
        " (default 0.5)",
    )
    group.add_argument(
        "--rise",
        type=number(1, 3600),
        metavar="SECONDS",
        help="time in which they take it, 1 to 3600 (default 10, with --quick 5); alerts need a "
        "minute to come first",
    )
    group.add_argument(
        "--recovery-limit",
        type=number(1, 3600),
        default=60.0,
        metavar="SECONDS",
        help="longest time for a new engine to take up all streams, 1 to 3600 (default 60)",
    )
    results = parser.add_argument_group("results")
    results.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    results.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the drill to a .png, .svg or .pdf (needs the extra `bench`)",
    )
    add_server_arguments(parser)
    add_admin_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from service.cli.drill_run import run_drill_command

    return run_drill_command(arguments)
