"""Watch servers in the manner of nvidia-smi: memory by owner, KV cache, load, and what forebodes
that memory ends.

Reads the pages of metrics, which have a port of their own. Without --once it looks again and
again until Ctrl-C, which ends it with status 0. A server that does not answer is shown as such.
Where the frames of several are too much for the terminal, each gets a line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from importlib.metadata import version

from rich.console import Console, RenderableType
from rich.live import Live

from service.cli.failure import EXIT_OK, EXIT_USAGE, CommandError
from service.cli.metrics_page import MetricsAddress, UnreadablePageError, metrics_address, read_page
from service.cli.values import number
from service.smi.document import document
from service.smi.look import Look, view
from service.smi.overview import overview
from service.smi.picture import picture
from service.smi.view import ServerView, SilentView

SERVERS_VARIABLE = "PLIMSOLL_METRICS_SERVERS"
DEFAULT_SERVER = "127.0.0.1:9002"
EXAMPLES = """\
examples:
  plimsoll smi
  plimsoll smi --once
  plimsoll smi 10.0.0.7:9002 10.0.0.8:9002 --interval 5
  plimsoll smi --json --once | jq '.servers[].memory.headroom_bytes'

--json prints a document a line, one for each look:
  time_unix_seconds, version (of this program), and servers, a list. A server that does not answer
  has address and error. Others have address, model, version, device, weights_dtype, kv_dtype,
  attention_backend, state, up_seconds, pressure_level (1 normal to 4 critical), gpus, memory, kv,
  load, counts and governor. Units are in the names; what is not known is null; a forecast of
  86400 seconds means: not in sight.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [HOST:PORT ...] [options]"
    parser.add_argument(
        "servers",
        metavar="HOST:PORT",
        nargs="*",
        type=metrics_address,
        help=f"metrics ports to read (default: {SERVERS_VARIABLE}, with commas between several,"
        f" or {DEFAULT_SERVER})",
    )
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=number(0.2, 3600),
        default=2.0,
        help="time between two looks (default: 2)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=number(0.1, 3600),
        default=2.0,
        help="take a server that needs longer for silent (default: 2)",
    )
    parser.add_argument("--once", action="store_true", help="look once, at all since the start")
    parser.add_argument("--json", action="store_true", help="print a JSON document for each look")


def run(arguments: argparse.Namespace) -> int:
    watch = _Watch(arguments.servers or _default_servers(), arguments.timeout)
    if arguments.once:
        views = watch.look()
        if all(isinstance(each, SilentView) for each in views):
            reasons = "; ".join(
                f"{s.address}: {s.error}" for s in views if isinstance(s, SilentView)
            )
            raise CommandError(f"no server answers: {reasons}")
        _print(views, as_json=arguments.json)
        return EXIT_OK
    try:
        _look_again_and_again(watch, arguments.interval, as_json=arguments.json)
    except KeyboardInterrupt:
        return EXIT_OK
    return EXIT_OK


class _Watch:
    """Looks at servers, and remembers the last page of each."""

    def __init__(self, servers: Sequence[MetricsAddress], timeout_seconds: float) -> None:
        self._servers = servers
        self._timeout_seconds = timeout_seconds
        self._last: dict[MetricsAddress, Look] = {}

    def look(self) -> list[ServerView | SilentView]:
        """At all at the same time, so that a silent one does not hold the others up."""
        with ThreadPoolExecutor(max_workers=len(self._servers)) as pool:
            return list(pool.map(self._look_at, self._servers))

    def _look_at(self, server: MetricsAddress) -> ServerView | SilentView:
        try:
            page = read_page(server, self._timeout_seconds)
        except UnreadablePageError as error:
            return SilentView(str(server), str(error))
        before = self._last.get(server)
        now = Look.after(before, page, time.time(), time.monotonic())
        shown = view(str(server), now, before)
        self._last[server] = now
        return shown


def _look_again_and_again(watch: _Watch, interval_seconds: float, *, as_json: bool) -> None:
    console = Console(highlight=False)
    if as_json or not console.is_terminal:
        while True:
            _print(watch.look(), as_json=as_json)
            time.sleep(interval_seconds)
    # A plain death by SIGTERM would leave the terminal on its other screen.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_fitting(console, watch.look()), refresh=True)
            time.sleep(interval_seconds)


def _fitting(console: Console, views: Sequence[ServerView | SilentView]) -> RenderableType:
    """Frames, or a line for each server where several frames are too much for the terminal."""
    frames = picture(views, datetime.now(), version("plimsoll"))
    if len(views) == 1 or len(console.render_lines(frames)) <= console.height:
        return frames
    return overview(views)


def _print(views: Sequence[ServerView | SilentView], *, as_json: bool) -> None:
    now, own_version = datetime.now(), version("plimsoll")
    if as_json:
        print(document(views, now, own_version), flush=True)
    else:
        Console(highlight=False).print(picture(views, now, own_version))


def _default_servers() -> list[MetricsAddress]:
    named = os.environ.get(SERVERS_VARIABLE) or DEFAULT_SERVER
    try:
        return [metrics_address(each.strip()) for each in named.split(",")]
    except argparse.ArgumentTypeError as error:
        raise CommandError(f"{SERVERS_VARIABLE}: {error}", EXIT_USAGE) from error
