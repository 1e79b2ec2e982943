"""What the server said of itself at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from kvcache.pressure import FOREVER_SECONDS, PressureLevel

RUNGS = ("retry", "shrink", "requeue", "fail")  # of the OOM ladder, from the mildest on


@dataclass(frozen=True, slots=True)
class Ledger:
    """Device memory by owner; the owners and what is free sum to the total."""

    total_bytes: int
    free_bytes: int
    weights_bytes: int
    kv_bytes: int
    activation_bytes: int  # kept by the allocator for the next step included
    runtime_bytes: int  # graphs, and the context of the runtime
    other_bytes: int  # other processes
    reclaimable_bytes: int  # kept by the allocator and not in use
    headroom_bytes: int  # what a step can take
    demand_bytes: int  # what the largest next step takes


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. Counters count since the start of the server."""

    seconds: float  # since the beginning of the drill
    level: PressureLevel
    ledger: Ledger | None  # None: no engine has told
    kv_exhaustion_seconds: float = FOREVER_SECONDS
    device_exhaustion_seconds: float = FOREVER_SECONDS
    pool_blocks: int = 0
    held_blocks: int = 0
    goal_blocks: int = 0  # that the governor aims at
    ceiling_blocks: int = 0  # that were ordered
    step_tokens: int = 0
    admits: bool = True
    running: int = 0
    waiting: int = 0
    preempted: int = 0
    preemptions: int = 0
    rungs: tuple[int, ...] = (0,) * len(RUNGS)
    engine_restarts: int = 0
