"""Command line of the engine process."""

from __future__ import annotations

import argparse
import socket

import msgspec

from service.config import EngineSettings
from service.engine.channel import Channel
from service.engine.process import ParentGone, die_with_parent, leave_signals_to_parent
from service.engine.server import EXIT_OK, Build, serve


def main(build: Build) -> int:
    """Parses the arguments, serves with the runner of `build`, returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m service.engine",
        description="The engine process; the front starts it and talks to it over a socket.",
    )
    parser.add_argument("--fd", type=int, required=True, help="connected socket to the front")
    parser.add_argument("--settings", required=True, help="EngineSettings as JSON")
    arguments = parser.parse_args()
    leave_signals_to_parent()
    try:
        die_with_parent()
    except ParentGone:
        return EXIT_OK
    settings = msgspec.json.decode(arguments.settings, type=EngineSettings)
    sock = socket.socket(fileno=arguments.fd)
    sock.set_inheritable(False)  # else a child of ours would keep it open after our death
    with Channel(sock) as channel:
        return serve(channel, settings, build)
