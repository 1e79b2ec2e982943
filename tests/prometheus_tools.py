"""Prometheus, Alertmanager and their command line tools: on PATH, or unpacked by `.ci/tools`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER_VARIABLE = "PLIMSOLL_PROMETHEUS_TOOLS"  # a folder that has them, before PATH
UNPACKED = Path(__file__).parents[1] / ".venv" / "tools" / "usr" / "bin"
# Where an Alertmanager that `.ci/tools` has unpacked looks for its templates: where it is started.
TEMPLATES = UNPACKED.parent / "share" / "prometheus" / "alertmanager"

# By the name the makers give them: the name in Debian.
_NAMES = {
    "promtool": "promtool",
    "prometheus": "prometheus",
    "amtool": "amtool",
    "alertmanager": "prometheus-alertmanager",
}


def find(name: str) -> Path | None:
    """Path of a tool, or None where there is none."""
    folders = [os.environ.get(FOLDER_VARIABLE, ""), os.environ.get("PATH", ""), str(UNPACKED)]
    path = os.pathsep.join(folder for folder in folders if folder)
    found = shutil.which(name, path=path) or shutil.which(_NAMES[name], path=path)
    return Path(found) if found else None


def missing() -> str | None:
    """Why tests marked `prometheus` cannot run here; None where they can."""
    absent = [name for name in _NAMES if find(name) is None]
    return f"no {', '.join(absent)}: see .ci/tools" if absent else None


def tool(name: str) -> Path:
    """Path of a tool, in a test marked `prometheus`."""
    path = find(name)
    if path is None:
        raise LookupError(f"there is no {name}: run .ci/tools")
    return path
