"""Nobody would see it come: figures are old, or there are none."""

from __future__ import annotations

from dashboards.alerts.alert import Alert, AlertKind, Comparison, Condition, Severity
from dashboards.boards.uids import OVERVIEW, VRAM_TO_OOM
from service.telemetry.catalog import gpu, memory, server

# The job under which Prometheus scrapes the servers.
JOB = "plimsoll"

_UP = f'up{{job="{JOB}"}}'

MEMORY_SAMPLE_OLD = Alert(
    name="PlimsollMemorySampleOld",
    summary="The engine has not looked at its memory for a while",
    description="Not for {{ $value | humanizeDuration }}: no alert on device memory can be "
    "trusted.",
    condition=Condition(
        query=f"time() - {memory.SAMPLED.name}",
        comparison=Comparison.ABOVE,
        threshold=30,
        unit="seconds",
    ),
    for_seconds=15,
    severity=Severity.CRITICAL,
    kind=AlertKind.BLINDNESS,
    dashboard=VRAM_TO_OOM,
    panel="Age of samples",
)
GPU_SAMPLE_OLD = Alert(
    name="PlimsollGpuSampleOld",
    summary="The driver has not answered for a while",
    description="Not for {{ $value | humanizeDuration }}: what nvidia-smi would show is not known.",
    condition=Condition(
        query=f"time() - {gpu.SAMPLED.name}",
        comparison=Comparison.ABOVE,
        threshold=30,
        unit="seconds",
    ),
    for_seconds=15,
    severity=Severity.WARNING,
    kind=AlertKind.BLINDNESS,
    dashboard=VRAM_TO_OOM,
    panel="Age of samples",
)
TARGET_DOWN = Alert(
    name="PlimsollTargetDown",
    summary="A server cannot be scraped",
    description="Prometheus gets no figures from {{ $labels.instance }}.",
    condition=Condition(query=_UP, comparison=Comparison.BELOW, threshold=1, unit="boolean"),
    for_seconds=30,
    severity=Severity.CRITICAL,
    kind=AlertKind.BLINDNESS,
    dashboard=OVERVIEW,
    panel="Servers ready",
)
TARGET_ABSENT = Alert(
    name="PlimsollTargetAbsent",
    summary="Prometheus knows of no server",
    description=f"There is no target in the job {JOB}.",
    condition=Condition(
        query=f"count({_UP}) or vector(0)",
        comparison=Comparison.BELOW,
        threshold=1,
        unit="targets",
    ),
    for_seconds=120,
    severity=Severity.CRITICAL,
    kind=AlertKind.BLINDNESS,
    dashboard=OVERVIEW,
    panel="Servers ready",
)
FLIGHT_RECORDS_LOST = Alert(
    name="PlimsollFlightRecordsLost",
    summary="A flight record could not be written",
    description="{{ $value | humanize }} within ten minutes: what went wrong will not be known.",
    condition=Condition(
        query=f"increase({server.FLIGHT_LOST.name}[10m])",
        comparison=Comparison.ABOVE,
        threshold=0,
        unit="records",
    ),
    for_seconds=0,
    severity=Severity.WARNING,
    kind=AlertKind.BLINDNESS,
    dashboard=OVERVIEW,
    panel="Lost flight records",
)

ALERTS = (MEMORY_SAMPLE_OLD, GPU_SAMPLE_OLD, TARGET_DOWN, TARGET_ABSENT, FLIGHT_RECORDS_LOST)
