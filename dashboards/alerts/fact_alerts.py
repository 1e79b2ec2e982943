"""What has failed. The counters survive the engine; what killed the server is on its disk."""

from __future__ import annotations

from dashboards.alerts.alert import Alert, AlertKind, Comparison, Condition, Severity
from dashboards.boards.uids import OVERVIEW, VRAM_TO_OOM
from service.telemetry.catalog import memory, requests, server

OUT_OF_MEMORY = Alert(
    name="PlimsollOutOfMemory",
    summary="A step found no device memory",
    description="{{ $value | humanize }} times within two minutes. The requests go on: steps got "
    "smaller, or the KV pool did.",
    condition=Condition(
        query=f"sum without (rung) (increase({memory.OOM_RUNGS.name}[2m]))",
        comparison=Comparison.ABOVE,
        threshold=0,
        unit="steps",
    ),
    for_seconds=0,
    severity=Severity.CRITICAL,
    kind=AlertKind.FACT,
    dashboard=VRAM_TO_OOM,
    panel="Governor and OOM rungs",
)
REQUEST_LOST = Alert(
    name="PlimsollRequestLostToMemory",
    summary="A request failed, since device memory did not suffice for it alone",
    description="{{ $value | humanize }} times within five minutes the last rung of the OOM ladder "
    "was taken: nothing else helped.",
    condition=Condition(
        query=f'sum without (rung) (increase({memory.OOM_RUNGS.name}{{rung="fail"}}[5m]))',
        comparison=Comparison.ABOVE,
        threshold=0,
        unit="requests",
    ),
    for_seconds=0,
    severity=Severity.CRITICAL,
    kind=AlertKind.FACT,
    dashboard=VRAM_TO_OOM,
    panel="Governor and OOM rungs",
)
# A counter dies with its server, and its last increase is never scraped.
DIED_OF_MEMORY = Alert(
    name="PlimsollRestartAfterOutOfMemory",
    summary="A server started soon after the one before had run out of device memory",
    description="It started {{ $value | humanizeDuration }} after a step had found no memory.",
    condition=Condition(
        query=f"{server.STARTED.name} - {memory.LAST_OOM.name}",
        comparison=Comparison.BELOW,
        threshold=300,
        unit="seconds",
    ),
    guards=(
        Condition(
            query=f"{server.STARTED.name} - {memory.LAST_OOM.name}",
            comparison=Comparison.ABOVE,
            threshold=0,
            unit="seconds",
        ),
        Condition(
            query=f"time() - {server.STARTED.name}",
            comparison=Comparison.BELOW,
            threshold=600,
            unit="seconds",
        ),
    ),
    for_seconds=0,
    severity=Severity.CRITICAL,
    kind=AlertKind.FACT,
    dashboard=VRAM_TO_OOM,
    panel="Governor and OOM rungs",
)
ENGINE_RESTARTED = Alert(
    name="PlimsollEngineRestarted",
    summary="The engine died and was replaced",
    description="{{ $value | humanize }} times within ten minutes. Its requests go on in the new "
    "one.",
    condition=Condition(
        query=f"round(increase({server.RESTARTS.name}[10m]))",
        comparison=Comparison.ABOVE,
        threshold=0,
        unit="restarts",
    ),
    for_seconds=0,
    severity=Severity.WARNING,
    kind=AlertKind.FACT,
    dashboard=OVERVIEW,
    panel="Engine restarts",
)
ENGINE_CRASH_LOOP = Alert(
    name="PlimsollEngineCrashLoop",
    summary="Engines die again and again",
    description="{{ $value | humanize }} times within ten minutes.",
    condition=Condition(
        query=f"round(increase({server.RESTARTS.name}[10m]))",
        comparison=Comparison.ABOVE,
        threshold=2,
        unit="restarts",
    ),
    for_seconds=0,
    severity=Severity.CRITICAL,
    kind=AlertKind.FACT,
    dashboard=OVERVIEW,
    panel="Engine restarts",
)
SERVER_CRASH_LOOP = Alert(
    name="PlimsollServerCrashLoop",
    summary="Servers start again and again",
    description="{{ $value | humanize }} times within half an hour.",
    condition=Condition(
        query=f"changes({server.STARTED.name}[30m])",
        comparison=Comparison.ABOVE,
        threshold=2,
        unit="starts",
    ),
    for_seconds=0,
    severity=Severity.CRITICAL,
    kind=AlertKind.FACT,
    dashboard=OVERVIEW,
    panel="Engine restarts",
)
REQUEST_CRASHES = Alert(
    name="PlimsollRequestKillsEngines",
    summary="A request was ended since engines die of it",
    description="{{ $value | humanize }} within ten minutes. What it asked for is in the flight "
    "record.",
    condition=Condition(
        query="sum without (outcome) "
        f'(increase({requests.FINISHED.name}{{outcome="engine_crashed"}}[10m]))',
        comparison=Comparison.ABOVE,
        threshold=0,
        unit="requests",
    ),
    for_seconds=0,
    severity=Severity.WARNING,
    kind=AlertKind.FACT,
    dashboard=OVERVIEW,
    panel="Requests that end",
)

ALERTS = (
    *(OUT_OF_MEMORY, REQUEST_LOST, DIED_OF_MEMORY, ENGINE_RESTARTED, ENGINE_CRASH_LOOP),
    *(SERVER_CRASH_LOOP, REQUEST_CRASHES),
)
