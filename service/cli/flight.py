"""Show the flight records of servers: what was written down when something went wrong.

A server records each rung of the OOM ladder, each death of an engine, each request that is
found to kill engines, the entry into the pressure level CRITICAL, and its own end, with the
minute before it. The records are files on the server's machine; no server needs to run, and
a file that was copied from elsewhere can be shown too. Times are UTC."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from service.cli.failure import EXIT_USAGE, CommandError
from service.config.sources import CONFIG_VARIABLE, load_settings
from service.flight.folder import DamagedRecordError, FlightFolder, read_record
from service.flight.place import NoHomeError, folder_path

if TYPE_CHECKING:
    from service.flight.record import FlightRecord

EXAMPLES = """\
examples:
  plimsoll flight list
  plimsoll flight show
  plimsoll flight show 20261130T213022.480121Z-4242-0003-engine-death.json
  plimsoll flight show --json | jq .signals.vitals.headroom_bytes
  kubectl cp POD:/var/lib/plimsoll/flight/NAME . && plimsoll flight show ./NAME
"""

# Other variables are of no interest here, also if the server would not accept them.
_VARIABLES = ("PLIMSOLL_FLIGHT_FOLDER", CONFIG_VARIABLE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s list|show [NAME] [options]"
    parser.add_argument(
        "action",
        choices=("list", "show"),
        help="all records, the newest first; or one with everything that is in it",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="record, or file, to show (default: the newest)"
    )
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        help="where the records are (default: flight_folder of the settings)",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with the server's settings")
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(arguments: argparse.Namespace) -> int:
    from service.cli.flight_text import list_lines, list_rows, show_lines

    if arguments.action == "list" and arguments.name is not None:
        raise CommandError("`list` takes no name", EXIT_USAGE)
    folder = FlightFolder(_folder(arguments))
    try:
        if arguments.action == "list":
            entries = folder.entries()
            if arguments.json:
                _print_json(list_rows(entries))
            else:
                print("\n".join(list_lines(folder.path, entries)))
        else:
            record = _record(folder, arguments.name)
            if arguments.json:
                _print_json(record)
            else:
                print("\n".join(show_lines(record)))
    except DamagedRecordError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename or folder.path}: {error.strerror}") from error
    return 0


def _folder(arguments: argparse.Namespace) -> Path:
    flags = {} if arguments.folder is None else {"flight_folder": arguments.folder}
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    try:
        settings = load_settings(flags, environment=environment, config_file=arguments.config)
        return folder_path(settings.flight_folder, os.environ)
    except (ValueError, NoHomeError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error


def _record(folder: FlightFolder, name: str | None) -> FlightRecord:
    if name is None:
        names = folder.names()
        if not names:
            raise CommandError(f"{folder.path}: there are no flight records")
        return read_record(folder.path / str(names[-1]))
    given, listed = Path(name), folder.path / name
    if given.name == name and listed.exists():
        return read_record(listed)
    if not given.exists():
        raise CommandError(
            f"{folder.path}: there is no record {name}; `plimsoll flight list` shows them"
        )
    return read_record(given)


def _print_json(document: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
