"""Memory of the device: a step that finds none fails.

An absolute share says nothing, since the KV pool holds most of the device for ever. What counts is
headroom against the demand of the next step, and how soon the one falls to the other.
"""

from __future__ import annotations

from dashboards.alerts.alert import (
    Alert,
    AlertKind,
    Comparison,
    Condition,
    Lead,
    Recording,
    Severity,
)
from dashboards.boards.uids import VRAM_TO_OOM
from service.telemetry.catalog import cache, memory

_MINUTE = 60

# What steps and pool share. The pool gives way, so that headroom alone would tell too late of a
# leak: it stays the same until there is no pool.
SPARE = Recording(
    "plimsoll:device_spare_bytes",
    f'{memory.HEADROOM.name} + sum without (owner) ({memory.OWNED.name}{{owner="kv_pool"}})',
)
RECORDINGS = (SPARE,)

_HEADROOM_SHARE = f"{memory.HEADROOM.name} / {memory.CAPACITY.name}"
# As in the governor: while more is left, what others take and give back is not the end.
_LITTLE_IS_LEFT = Condition(
    query=_HEADROOM_SHARE, comparison=Comparison.BELOW, threshold=0.25, unit="ratio"
)
_CLOSED = Condition(
    query=memory.ADMISSIONS_OPEN.name, comparison=Comparison.BELOW, threshold=1, unit="boolean"
)

LEAK = Alert(
    name="PlimsollMemoryLeakForecast",
    summary="Device memory ends within half an hour if it goes on like this",
    description="The trend of the last quarter of an hour leaves {{ $value | humanize1024 }}B in "
    "half an hour after what a step takes, the KV pool given up.",
    condition=Condition(
        query=f"predict_linear({SPARE.name}[15m], 1800) - {memory.DEMAND.name}",
        comparison=Comparison.BELOW,
        threshold=0,
        unit="bytes",
    ),
    for_seconds=5 * _MINUTE,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(300, 1800),
    dashboard=VRAM_TO_OOM,
    panel="Memory by owner",
)
OTHERS_GROW = Alert(
    name="PlimsollOthersTakeMemory",
    summary="Somebody else takes memory of the device",
    description="Within two minutes other processes, or what nobody claims, took "
    "{{ $value | humanizePercentage }} of the device.",
    condition=Condition(
        query=f'sum without (owner) (delta({memory.OWNED.name}{{owner="others"}}[2m])) '
        f"/ {memory.CAPACITY.name}",
        comparison=Comparison.ABOVE,
        threshold=0.05,
        unit="ratio",
    ),
    for_seconds=0,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(30, 300),
    dashboard=VRAM_TO_OOM,
    panel="Memory by owner",
)
POOL_SHRUNK = Alert(
    name="PlimsollPoolBelowCeiling",
    summary="The governor keeps the KV pool smaller than was ordered",
    description="The KV pool is to have {{ $value | humanizePercentage }} of the blocks that were "
    "ordered: steps need the memory of the others.",
    condition=Condition(
        query=f"{cache.GOAL.name} / {cache.CEILING.name}",
        comparison=Comparison.BELOW,
        threshold=0.9,
        unit="ratio",
    ),
    for_seconds=5,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(30, 600),
    dashboard=VRAM_TO_OOM,
    panel="Pool goal and ceiling",
)
FRAGMENTED = Alert(
    name="PlimsollAllocatorFragmented",
    summary="The allocator holds memory in pieces that are too small",
    description="{{ $value | humanizePercentage }} of what the allocator has is in the unused "
    "rest of split segments, and the device has little else.",
    condition=Condition(
        query=f"{memory.ALLOCATOR_INACTIVE.name} / clamp_min({memory.ALLOCATOR_RESERVED.name}, 1)",
        comparison=Comparison.ABOVE,
        threshold=0.15,
        unit="ratio",
    ),
    guards=(
        Condition(query=_HEADROOM_SHARE, comparison=Comparison.BELOW, threshold=0.1, unit="ratio"),
    ),
    for_seconds=2 * _MINUTE,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(60, 3600),
    dashboard=VRAM_TO_OOM,
    panel="Fragmentation",
)
EXHAUSTION_NEAR = Alert(
    name="PlimsollDeviceExhaustionNear",
    summary="Device memory ends within two minutes",
    description="At the present pace a step finds no memory in {{ $value | humanizeDuration }}, "
    "the KV pool given up.",
    condition=Condition(
        query=memory.DEVICE_EXHAUSTION.name,
        comparison=Comparison.BELOW,
        threshold=120,
        unit="seconds",
    ),
    guards=(_LITTLE_IS_LEFT,),
    for_seconds=10,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(20, 110),
    dashboard=VRAM_TO_OOM,
    panel="Predicted time to the end",
)
EXHAUSTION_IMMINENT = Alert(
    name="PlimsollDeviceExhaustionImminent",
    summary="Device memory ends within half a minute",
    description="At the present pace a step finds no memory in {{ $value | humanizeDuration }}, "
    "the KV pool given up.",
    condition=Condition(
        query=memory.DEVICE_EXHAUSTION.name,
        comparison=Comparison.BELOW,
        threshold=30,
        unit="seconds",
    ),
    guards=(_LITTLE_IS_LEFT,),
    for_seconds=5,
    severity=Severity.CRITICAL,
    kind=AlertKind.PRECURSOR,
    lead=Lead(5, 25),
    dashboard=VRAM_TO_OOM,
    panel="Predicted time to the end",
)
HEADROOM_THIN = Alert(
    name="PlimsollHeadroomThin",
    summary="Hardly more device memory is left than the largest step takes",
    description="In the last minute the headroom fell to {{ $value | humanize }} times the "
    "largest step.",
    condition=Condition(
        query=f"{memory.HEADROOM_LOW.name} / {memory.DEMAND_HIGH.name}",
        comparison=Comparison.BELOW,
        threshold=1.1,
        unit="ratio",
    ),
    for_seconds=5,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(5, 300),
    dashboard=VRAM_TO_OOM,
    panel="Headroom against demand",
)
# The demand is that of the pace in force: a step that the governor made smaller may well fit.
HEADROOM_BELOW_DEMAND = Alert(
    name="PlimsollHeadroomBelowDemand",
    summary="The next step may find no device memory",
    description="In the last minute the headroom fell to {{ $value | humanize }} times what the "
    "largest next step takes.",
    condition=Condition(
        query=f"{memory.HEADROOM_LOW.name} / {memory.DEMAND.name}",
        comparison=Comparison.BELOW,
        threshold=1,
        unit="ratio",
    ),
    for_seconds=0,
    severity=Severity.CRITICAL,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 30),
    dashboard=VRAM_TO_OOM,
    panel="Headroom against demand",
)
PRESSURE_CRITICAL = Alert(
    name="PlimsollPressureCritical",
    summary="Even the smallest step hardly finds device memory",
    description="The pressure level is {{ $value }} (4: critical): a step of the smallest size "
    "does not fit, or memory ends within a second.",
    condition=Condition(
        query=memory.PRESSURE.name, comparison=Comparison.ABOVE, threshold=3, unit="level"
    ),
    # A full queue is critical too, and nothing of memory: only for memory the batch is closed.
    guards=(_CLOSED,),
    for_seconds=0,
    severity=Severity.CRITICAL,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 10),
    dashboard=VRAM_TO_OOM,
    panel="Pressure",
)
ADMISSIONS_CLOSED = Alert(
    name="PlimsollAdmissionsClosed",
    summary="The governor lets nobody into the batch",
    description="Sequences that wait are held back, so that those that run find device memory.",
    condition=_CLOSED,
    for_seconds=5,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 60),
    dashboard=VRAM_TO_OOM,
    panel="Admissions open",
)
RETRIES = Alert(
    name="PlimsollAllocatorRetries",
    summary="An allocation succeeded only after the allocator had given back what it kept",
    description="{{ $value | humanize }} times within five minutes: each is an out-of-memory "
    "error that was just survived.",
    condition=Condition(
        query=f"increase({memory.ALLOCATOR_RETRIES.name}[5m])",
        comparison=Comparison.ABOVE,
        threshold=0,
        unit="allocations",
    ),
    for_seconds=0,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 300),
    dashboard=VRAM_TO_OOM,
    panel="Allocations that failed",
)
RETRY_STORM = Alert(
    name="PlimsollAllocatorRetryStorm",
    summary="Allocations succeed only after the allocator has given back what it kept",
    description="{{ $value | humanize }} times within a minute: the next one may fail.",
    condition=Condition(
        query=f"round(increase({memory.ALLOCATOR_RETRIES.name}[1m]))",
        comparison=Comparison.ABOVE,
        threshold=5,
        unit="allocations",
    ),
    for_seconds=0,
    severity=Severity.CRITICAL,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 30),
    dashboard=VRAM_TO_OOM,
    panel="Allocations that failed",
)

ALERTS = (
    *(LEAK, OTHERS_GROW, POOL_SHRUNK, FRAGMENTED, EXHAUSTION_NEAR, EXHAUSTION_IMMINENT),
    *(HEADROOM_THIN, HEADROOM_BELOW_DEMAND, PRESSURE_CRITICAL, ADMISSIONS_CLOSED),
    *(RETRIES, RETRY_STORM),
)
