"""Serve a model over gRPC.

Settings come from flags, then environment variables (PLIMSOLL_PORT for --port, and so on),
then a TOML file, then the defaults shown below. Inference, admin and metrics have a port each.

The ports open at once; health says SERVING when the model is loaded. SIGTERM or Ctrl-C
stops gracefully: new requests are refused, running ones get --grace-seconds to end. A
second one stops at once. Exit status: 0 after a stop, 1 when the server cannot go on, 2
for a wrong setting."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from service.cli.failure import EXIT_USAGE, CommandError
from service.config import ServeSettings
from service.config.sources import load_settings, settings_flags, settings_parser
from service.models.source import model_name

if TYPE_CHECKING:
    from service.api.server import Addresses

EXAMPLES = """\
examples:
  plimsoll serve
  plimsoll serve --model ./my-model.gguf --kv-memory-bytes 512MiB
  plimsoll serve --host 0.0.0.0 --port 9000 --admin-port 9001 --config plimsoll.toml
"""

# Variables of the client commands, which the settings do not know.
_CLIENT_VARIABLES = ("PLIMSOLL_SERVER", "PLIMSOLL_ADMIN_SERVER")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    parser.add_argument(
        "--ready-file",
        metavar="FILE",
        type=Path,
        help="write the addresses of inference, admin and metrics to this file, a line each, when "
        "the model is ready",
    )
    settings_parser(parser)


def run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    # Slow imports, after the settings are known to be right.
    from service.api.ports import BindError
    from service.api.server import run as run_server
    from service.cli.loading import LoadingDisplay
    from service.faults.plan_file import FaultPlanError
    from service.flight.termination import write_termination_log
    from service.front.state import EngineFailed
    from service.logs import configure_logging
    from service.models.errors import ModelFileError

    ready_file: Path | None = arguments.ready_file
    with LoadingDisplay(_served_name(settings)) as display:
        # sys.stderr is the display's now, so that records appear above the bar …
        log_settings = (settings.log_level, settings.log_format, None, settings.log_repeats)
        configure_logging(*log_settings)

        def ready(addresses: Addresses) -> None:
            display.finish()
            configure_logging(*log_settings)  # … and here no more
            _announce(settings, addresses)
            if ready_file is not None:
                lines = (addresses.inference, addresses.admin, addresses.metrics)
                _write_whole(ready_file, "".join(f"{line}\n" for line in lines))

        try:
            run_server(settings, ready, display.update)
        except FaultPlanError as error:
            raise CommandError(f"--fault-plan: {error}", EXIT_USAGE) from error
        except (BindError, EngineFailed, ModelFileError) as error:
            write_termination_log(Path(settings.termination_log), str(error))
            raise CommandError(str(error)) from error
        except Exception as error:
            write_termination_log(
                Path(settings.termination_log), f"{type(error).__name__}: {error}"
            )
            raise
    return 0


def _settings(arguments: argparse.Namespace) -> ServeSettings:
    environment = {k: v for k, v in os.environ.items() if k not in _CLIENT_VARIABLES}
    try:
        return load_settings(
            settings_flags(arguments),
            environment=environment,
            config_file=getattr(arguments, "config", None),
        )
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error


def _served_name(settings: ServeSettings) -> str:
    return settings.served_model_name or model_name(settings.engine.model)


def _announce(settings: ServeSettings, addresses: Addresses) -> None:
    print(
        f"serving {_served_name(settings)}\n"
        f"  inference  {addresses.inference}\n"
        f"  admin      {addresses.admin}\n"
        f"  metrics    http://{addresses.metrics}/metrics",
        file=sys.stderr,
        flush=True,
    )


def _write_whole(path: Path, text: str) -> None:
    """A reader sees all of it or no file."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
