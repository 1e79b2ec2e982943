"""Write dashboards and rules of alerts: python -m dashboards.build [--check].

The files are committed, so that whoever installs them needs no Python. With --check nothing
is written, and files that are not as the code has them are an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dashboards import alerts
from dashboards.boards import all_boards

FOLDER = Path(__file__).parent / "json"


def expected_files() -> dict[str, str]:
    """Text of each file by its name."""
    return {board.file_name: board.text() for board in all_boards()}


def stale_files(folder: Path, expected: Mapping[str, str]) -> list[str]:
    """Names of files that are missing, other than expected, or not of a dashboard."""
    present = {path.name: path.read_text("utf-8") for path in folder.glob("*.json")}
    names = sorted(present.keys() | expected.keys())
    return [name for name in names if present.get(name) != expected.get(name)]


def write(folder: Path, expected: Mapping[str, str]) -> None:
    """Make the folder hold exactly these files."""
    folder.mkdir(exist_ok=True)
    for name in stale_files(folder, expected):
        if name in expected:
            (folder / name).write_text(expected[name], "utf-8")
        else:
            (folder / name).unlink()


def stale_alert_files(expected: Mapping[Path, str]) -> list[Path]:
    """Files of the alerts that are missing or other than expected."""
    return [
        path
        for path, text in expected.items()
        if not path.is_file() or path.read_text("utf-8") != text
    ]


def write_alert_files(expected: Mapping[Path, str]) -> None:
    """Write them; other files of their folders are left alone."""
    for path in stale_alert_files(expected):
        path.parent.mkdir(exist_ok=True)
        path.write_text(expected[path], "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Exit code: 1 if files were to be as expected and are not."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; tell what is stale")
    options = parser.parse_args(arguments)
    expected = expected_files()
    alert_files = alerts.files()
    stale = [FOLDER / name for name in stale_files(FOLDER, expected)]
    stale += stale_alert_files(alert_files)
    if options.check:
        for path in stale:
            print(f"{path} is stale: run python -m dashboards.build", file=sys.stderr)
        return 1 if stale else 0
    write(FOLDER, expected)
    write_alert_files(alert_files)
    print(f"{len(expected)} dashboards, {len(alert_files)} files of alerts: {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
