"""promtool and amtool, where they are installed or unpacked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

FOLDER_VARIABLE = "PLIMSOLL_PROMETHEUS_TOOLS"  # a folder that has them


def tool(name: str) -> Path:
    """Path of a tool; the test is skipped where there is none."""
    folder = os.environ.get(FOLDER_VARIABLE)
    path = shutil.which(name, path=folder) if folder else shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name}: put it on PATH, or its folder into {FOLDER_VARIABLE}")
    return Path(path)
