"""Files that a command writes its results to."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from service.cli.failure import CommandError


def check_result_files(json: Path | None, plot: Path | None) -> None:
    """What would fail after the run should fail before it."""
    for path in (json, plot):
        if path is not None and not path.parent.is_dir():
            raise CommandError(f"{path}: there is no folder {path.parent}")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib: pip install 'plimsoll[bench]'")
