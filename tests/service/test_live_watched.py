"""A drill of a real server under the eyes of a real Prometheus and Alertmanager."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from live_server import LiveServer, serve
from nvml_stub import COMPILER, GIB, NvmlStub, StubGpu
from watched import Watch, watch

from dashboards.alerts import ALERTS, RECORDINGS, AlertKind, Severity
from dashboards.boards import all_boards
from dashboards.lint.board_rules import expressions
from service.client import GenerationOptions, PlimsollClient, PlimsollError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.prometheus,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler for the stub of the GPU driver"),
]

FLAGS = ("--dtype", "float32", "--device-memory-bytes", "1600MiB", "--max-step-tokens", "256")
RISE_SECONDS = 75  # in which others take the memory
LEAST_LEAD_SECONDS = 30
_VALUES = {
    "${datasource}": "-",
    "$__rate_interval": "10s",
    "$__interval": "5s",
    "$__range": "300s",
    "$namespace": ".*",
    "$model": ".*",
    "$pod": ".*",
}


def test_a_drill_is_seen_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = NvmlStub(tmp_path)
    stub.tell(StubGpu(used_bytes=40 * GIB, processes={"self": 30 * GIB}, utilization_percent=50))
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    flight = tmp_path / "flight"
    with (
        serve("--allow-faults", "--flight-folder", str(flight), *FLAGS) as live,
        watch(live.metrics_address, tmp_path) as seen,
    ):
        run_drill(live, tmp_path / "drill.json")
        rung_seconds = first_rung(seen)
        leads = lead_seconds(seen, rung_seconds)
        print(table(leads))
        wait_for_page(seen)
        assert_everything_has_data(seen)

    assert "PlimsollOutOfMemory" in seen.pager.firing("/page")
    precursors = {alert.name for alert in ALERTS if alert.kind is AlertKind.PRECURSOR}
    assert seen.inhibited.get("PlimsollOutOfMemory", set()) & precursors, seen.inhibited
    warnings = {alert.name for alert in ALERTS if alert.severity is Severity.WARNING} & precursors
    assert max(leads.get(name, 0.0) for name in warnings) >= LEAST_LEAD_SECONDS
    critical = precursors - warnings
    assert max(leads.get(name, 0.0) for name in critical) > 0
    facts = {alert.name for alert in ALERTS if alert.kind is AlertKind.FACT}
    assert all(leads[name] <= 0 for name in facts & leads.keys()), "told before it happened"


def run_drill(live: LiveServer, document: Path) -> None:
    """It must pass; a trickle of requests of two tenants goes on beside it."""
    over = threading.Event()
    trickle = threading.Thread(target=lambda: asyncio.run(ask_as_tenants(live.address, over)))
    trickle.start()
    drill = subprocess.run(
        [
            *(sys.executable, "-m", "service.cli", "drill", "--quick", "--rise", str(RISE_SECONDS)),
            *("--streams", "6", "--prompts", "8", "--max-tokens", "64"),
            *("--recovery-limit", "100", "--json", str(document)),
            *("--server", live.address, "--admin-server", live.admin_address),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    over.set()
    trickle.join()
    assert drill.returncode == 0, drill.stdout + drill.stderr
    assert json.loads(document.read_text())["findings"]["rungs"]["retry"] > 0


async def ask_as_tenants(address: str, over: threading.Event) -> None:
    options = GenerationOptions(max_tokens=4)
    async with (
        PlimsollClient(address, metadata=[("x-tenant-id", "alpha")]) as alpha,
        PlimsollClient(address, metadata=[("x-tenant-id", "beta")]) as beta,
    ):
        while not over.is_set():
            for client in (alpha, beta):
                with contextlib.suppress(PlimsollError):  # closed admissions are no fault
                    await client.generate("The tide", options)
            await asyncio.sleep(2)


def first_rung(seen: Watch) -> float:
    """When a step found no memory for the first time, in Unix time."""
    seconds = seen.first_seconds("sum(plimsoll_oom_rungs_total) > 0")
    assert seconds is not None
    return seconds


def lead_seconds(seen: Watch, rung_seconds: float) -> dict[str, float]:
    """By alert that fired: how long before the first rung it did so first."""
    first: dict[str, float] = {}
    for labels, values in seen.samples('ALERTS{alertstate="firing"}'):
        name = labels["alertname"]
        first[name] = min(first.get(name, values[0][0]), values[0][0])
    return {name: rung_seconds - seconds for name, seconds in first.items()}


def table(leads: dict[str, float]) -> str:
    kinds = {alert.name: (alert.severity.value, alert.kind.value) for alert in ALERTS}
    lines = ["", f"{'alert':34} {'severity':9} {'kind':10} ahead of the first rung"]
    for name, lead in sorted(leads.items(), key=lambda row: -row[1]):
        severity, kind = kinds[name]
        lines.append(f"{name:34} {severity:9} {kind:10} {lead:7.0f} s")
    return "\n".join(lines)


def wait_for_page(seen: Watch) -> None:
    """Alertmanager tells news of a group that it has told of only after `group_interval`."""
    give_up = time.monotonic() + 200
    while "PlimsollOutOfMemory" not in seen.pager.firing("/page") and time.monotonic() < give_up:
        time.sleep(0.5)


def assert_everything_has_data(seen: Watch) -> None:
    """Each expression of dashboards, alerts and recordings had a value during the drill."""
    asked = {
        (f"{board.uid}: {panel}", expression)
        for board in all_boards()
        for panel, expression in expressions(json.loads(board.text()))
    }
    for alert in ALERTS:
        for condition in (alert.condition, *alert.guards):
            asked.add((alert.name, condition.query))
    asked |= {(recording.name, recording.query) for recording in RECORDINGS}
    assert len(asked) > 200
    silent = [
        (where, expression)
        for where, expression in sorted(asked)
        if not seen.has_data(with_values(expression))
    ]
    assert not silent, "\n".join(f"{where}: {expression}" for where, expression in silent)


def with_values(expression: str) -> str:
    for variable, value in _VALUES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression
