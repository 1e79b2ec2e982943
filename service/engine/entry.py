"""Command line of the engine process."""

from __future__ import annotations

import argparse
import logging
import os
import socket

import msgspec

from service.config import EngineSettings
from service.config.engine import PREDECESSOR_VARIABLE, SETTINGS_VARIABLE
from service.config.engine_logs import LOGS_VARIABLE, LogSettings
from service.engine.channel import Channel
from service.engine.logs import configure_logging
from service.engine.messages import Predecessor
from service.engine.process import ParentGone, die_with_parent, leave_signals_to_parent
from service.engine.pulse import Pulse
from service.engine.server import EXIT_CRASHED, EXIT_OK, Build, serve

_log = logging.getLogger(__name__)


def main(build: Build) -> int:
    """Parses the arguments, serves with the runner of `build`, returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m service.engine",
        description="The engine process; the front starts it, talks to it over a socket, and gives "
        f"it its settings in {SETTINGS_VARIABLE}.",
    )
    parser.add_argument("--fd", type=int, required=True, help="connected socket to the front")
    parser.add_argument(
        "--pulse-fd", type=int, required=True, help="memory in which the front sees progress"
    )
    arguments = parser.parse_args()
    leave_signals_to_parent()
    try:
        die_with_parent()
    except ParentGone:
        return EXIT_OK
    logs = os.environ.get(LOGS_VARIABLE, "{}")
    configure_logging(msgspec.json.decode(logs, type=LogSettings))
    settings = msgspec.json.decode(os.environ[SETTINGS_VARIABLE], type=EngineSettings)
    told = os.environ.get(PREDECESSOR_VARIABLE)
    predecessor = None if told is None else msgspec.json.decode(told, type=Predecessor)
    sock = socket.socket(fileno=arguments.fd)
    sock.set_inheritable(False)  # else a child of ours would keep it open after our death
    pulse = Pulse(arguments.pulse_fd)
    os.close(arguments.pulse_fd)
    with Channel(sock) as channel:
        try:
            return serve(channel, settings, build, pulse.beat, predecessor)
        except Exception:  # noqa: BLE001 (told, and the process ends of it)
            try:
                _log.exception("engine crashed")
            finally:
                # Not through the interpreter's end: what tears torch down takes long, and can hang
                # on a device that is lost, while streams wait for the next engine.
                os._exit(EXIT_CRASHED)
