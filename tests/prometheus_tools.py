"""The programs of Prometheus and Alertmanager, on PATH or where `make tools` unpacks them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

UNPACKED = Path(sys.prefix) / "tools" / "usr" / "bin"


def tool(name: str) -> Path:
    """Path of a program; the test is skipped where there is none."""
    path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), str(UNPACKED))))
    if path is None:
        pytest.skip(f"there is no {name}: `make tools` unpacks it where there is apt")
    return Path(path)
