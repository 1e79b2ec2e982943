"""Shared by all tests: markers that need hardware or a cluster skip aloud."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import prometheus_tools
import pytest
from hypothesis import HealthCheck, settings

from service.engine.openmp import wait_politely

wait_politely()  # before any test imports torch

# A machine that stands still for a second is no fault of what is tested. Every run has the same
# examples; `--hypothesis-profile=search --hypothesis-seed=N` tries others.
settings.register_profile(
    "search", derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("same", settings.get_profile("search"), derandomize=True)
settings.load_profile("same")


@functools.cache
def _missing_gpu() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA driver on this machine"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return None if listed.returncode == 0 else f"nvidia-smi: {listed.stdout or listed.stderr}"


@functools.cache
def _missing_cluster() -> str | None:
    return None if os.environ.get("KUBECONFIG") else "KUBECONFIG is not set"


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Servers of the tests leave their flight records here, not in the user's home."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


def _missing_prometheus() -> str | None:
    # CI has to have it: there such tests run, and fail.
    return None if os.environ.get("CI") == "true" else prometheus_tools.missing()


_NEEDS = {"gpu": _missing_gpu, "cluster": _missing_cluster, "prometheus": _missing_prometheus}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run, with the reason."""
    for item in items:
        for marker, missing in _NEEDS.items():
            if item.get_closest_marker(marker) and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=f"{marker}: {reason}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests wait for hardware, also when there are none."""
    skipped = terminalreporter.stats.get("skipped", [])
    for marker in _NEEDS:
        count = sum(1 for report in skipped if marker in report.keywords)
        terminalreporter.write_line(f"{count} tests marked {marker} were skipped")
