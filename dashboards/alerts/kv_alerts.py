"""Blocks of the KV cache: where none is free, sequences lose theirs and are computed again.

Nobody's request fails for that. So these warn; what wakes somebody is the device's memory.
"""

from __future__ import annotations

from dashboards.alerts.alert import Alert, AlertKind, Comparison, Condition, Lead, Severity
from dashboards.boards.uids import KV_CACHE
from service.telemetry.catalog import cache, memory, requests

_MINUTE = 60
_HELD = f'sum without (state) ({cache.BLOCKS.name}{{state=~"active|reserved|kept"}})'

EXHAUSTION = Alert(
    name="PlimsollKvExhaustionNear",
    summary="The KV pool is full within a minute",
    description="At the present pace no block is free in {{ $value | humanizeDuration }}: then "
    "sequences are preempted.",
    condition=Condition(
        query=memory.KV_EXHAUSTION.name,
        comparison=Comparison.BELOW,
        threshold=60,
        unit="seconds",
    ),
    guards=(
        Condition(
            query=f"{_HELD} / {cache.CAPACITY.name}",
            comparison=Comparison.ABOVE,
            threshold=0.85,
            unit="ratio",
        ),
    ),
    for_seconds=10,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 50),
    dashboard=KV_CACHE,
    panel="Pool runs out in",
)
LOW = Alert(
    name="PlimsollKvPoolNearlyFull",
    summary="The KV pool has hardly a block to give",
    description="In the last minute blocks that are free or may be evicted fell to "
    "{{ $value | humanizePercentage }} of the pool.",
    condition=Condition(
        query=f"{cache.FREE_LOW.name} / {cache.CAPACITY.name}",
        comparison=Comparison.BELOW,
        threshold=0.05,
        unit="ratio",
    ),
    for_seconds=30,
    severity=Severity.INFO,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 600),
    dashboard=KV_CACHE,
    panel="Blocks by state",
)
PREEMPTIONS = Alert(
    name="PlimsollPreemptionsFrequent",
    summary="Many sequences lose their blocks",
    description="{{ $value | humanize }} preemptions for each request that ends, for the reason "
    "{{ $labels.reason }}.",
    condition=Condition(
        query=f"sum without (mode) (rate({cache.PREEMPTIONS.name}[2m])) / ignoring (reason) "
        f"group_left () clamp_min(sum without (outcome) (rate({requests.FINISHED.name}[2m])), "
        "0.01)",
        comparison=Comparison.ABOVE,
        threshold=0.1,
        unit="preemptions per request",
    ),
    # Where few requests end, or none, a single preemption would be many for each.
    guards=(
        Condition(
            query=f"sum without (mode) (round(increase({cache.PREEMPTIONS.name}[2m])))",
            comparison=Comparison.ABOVE,
            threshold=4,
            unit="preemptions",
        ),
    ),
    for_seconds=30,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 300),
    dashboard=KV_CACHE,
    panel="Preemptions",
)
PREEMPTED_FOR_MEMORY = Alert(
    name="PlimsollPreemptedForDeviceMemory",
    summary="Sequences lose their blocks so that steps find device memory",
    description="{{ $value | humanize }} within a minute: the pool is smaller than what live "
    "sequences hold.",
    condition=Condition(
        query="sum without (mode, reason) "
        f'(increase({cache.PREEMPTIONS.name}{{reason=~"pool_shrunk|oom"}}[1m]))',
        comparison=Comparison.ABOVE,
        threshold=0,
        unit="preemptions",
    ),
    for_seconds=0,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 60),
    dashboard=KV_CACHE,
    panel="Preemptions",
)
PING_PONG = Alert(
    name="PlimsollSwapPingPong",
    summary="Blocks are swapped out only to come back",
    description="{{ $value | humanizePercentage }} of the KV pool goes to the host and comes back "
    "each second.",
    condition=Condition(
        query=f"min without (direction) (rate({cache.SWAP.name}[1m])) / "
        f"clamp_min({cache.CAPACITY.name} * {cache.BLOCK_SIZE.name}, 1)",
        comparison=Comparison.ABOVE,
        threshold=0.01,
        unit="ratio per second",
    ),
    for_seconds=_MINUTE,
    severity=Severity.WARNING,
    kind=AlertKind.PRECURSOR,
    lead=Lead(0, 300),
    dashboard=KV_CACHE,
    panel="Swapped bytes",
)

ALERTS = (EXHAUSTION, LOW, PREEMPTIONS, PREEMPTED_FOR_MEMORY, PING_PONG)
