"""Engine counters that go on when the engine is replaced."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec

from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.engine.figures import EngineStats, TierFigures, Vitals

_COUNTERS = (
    "steps",
    "prefill_tokens",
    "decode_tokens",
    "busy_seconds",
    "lookup_tokens",
    "hit_tokens",
    "evicted_blocks",
    "preemptions",
    "trims",
    "swaps",
    "regretted_tokens",
    "misses",
    "preemption_counts",
)
_OCCUPANCY = ("running", "waiting", "preempted")
_BLOCKS_IN_USE = (
    "blocks_cached",
    "blocks_held",
    "blocks_reserved",
    "blocks_shared",
    "blocks_kept",
    "slack_tokens",
    "tenant_blocks",
)
_TIER_COUNTERS = (
    "spilled_blocks",
    "lost_blocks",
    "loaded_blocks",
    "expired_loads",
    "dropped_blocks",
    "failures",
    "swapped_out_blocks",
    "swapped_in_blocks",
)
_TIER_OCCUPANCY = ("host_bytes", "loads")  # what is on disk outlives the engine
_VITALS_COUNTERS = ("allocator_retries", "allocator_ooms", "rungs", "actions")
_MEMORY_IN_USE = (
    "weights_bytes",
    "kv_bytes",
    "activation_bytes",
    "graph_bytes",
    "context_bytes",
    "reclaimable_bytes",
    "demand_bytes",
    "demand_high_bytes",
    "allocator_allocated_bytes",
    "allocator_reserved_bytes",
    "allocator_inactive_bytes",
)

Numbers = TypeVar("Numbers", EngineStats, TierFigures, Vitals)
Counts: TypeAlias = "dict[str, Any]"  # by name of a counter: a number, or a tuple of them


class EngineTotals:
    """Adds the counters of dead engines to those of the living one."""

    def __init__(self) -> None:
        self.has_spoken = False  # the present engine, of its numbers
        self._latest: EngineStats | None = None
        self._vitals: Vitals | None = None  # may be newer than those of the latest numbers
        self._before: Counts = {}
        self._tiers_before: Counts = {}
        self._vitals_before: Counts = {}

    def update(self, stats: EngineStats) -> None:
        """Takes the newest numbers of the present engine."""
        self.has_spoken = True
        self._latest, self._vitals = stats, stats.vitals

    def looked(self, vitals: Vitals) -> None:
        """Takes what the present engine saw of its memory before it could tell all its numbers.

        They may be its last words, and a rung of the ladder must not be lost with it.
        """
        self._vitals = vitals

    def engine_lost(self) -> None:
        """The next numbers come from an engine that counts from 0, with an empty pool."""
        self.has_spoken = False
        if self._vitals is not None:
            vitals = _taken_over(self._vitals, self._vitals_before, _VITALS_COUNTERS)
            self._vitals = _without_engine(vitals)
        latest = self._latest
        if latest is None:
            return
        tiers = latest.tiers
        if tiers is not None:
            tiers = _taken_over(tiers, self._tiers_before, _TIER_COUNTERS)
            tiers = _emptied(tiers, _TIER_OCCUPANCY)
        latest = _emptied(
            _taken_over(latest, self._before, _COUNTERS), (*_OCCUPANCY, *_BLOCKS_IN_USE)
        )
        self._latest = msgspec.structs.replace(latest, blocks_free=latest.blocks_total, tiers=tiers)

    def current(self) -> EngineStats | None:
        """Gauges of the present engine, counters of all; None before the first numbers.

        Between two engines the gauges are those of an empty pool and an empty device.
        """
        latest = self._latest
        if latest is None:
            return None
        return msgspec.structs.replace(
            _with(latest, self._before),
            tiers=latest.tiers and _with(latest.tiers, self._tiers_before),
            vitals=self._vitals and _with(self._vitals, self._vitals_before),
        )


def _taken_over(numbers: Numbers, before: Counts, counters: tuple[str, ...]) -> Numbers:
    """Adds the counters to `before`; the numbers with all of them at 0."""
    for counter in counters:
        count = getattr(numbers, counter)
        before[counter] = _sum(before[counter], count) if counter in before else count
    return _emptied(numbers, counters)


def _emptied(numbers: Numbers, names: tuple[str, ...]) -> Numbers:
    zeros = {name: _zero(getattr(numbers, name)) for name in names}
    return msgspec.structs.replace(numbers, **zeros)


def _with(numbers: Numbers, before: Counts) -> Numbers:
    sums = {counter: _sum(count, getattr(numbers, counter)) for counter, count in before.items()}
    return msgspec.structs.replace(numbers, **sums)


def _without_engine(vitals: Vitals) -> Vitals:
    """Memory when the engine's process is gone: what it had is free, and no step comes."""
    free_bytes = vitals.device_total_bytes - vitals.other_bytes
    return msgspec.structs.replace(
        _emptied(vitals, _MEMORY_IN_USE),
        level=PressureLevel.NORMAL,
        admits=True,
        pool_goal_blocks=vitals.pool_ceiling_blocks,
        device_free_bytes=free_bytes,
        headroom_low_bytes=free_bytes,
        kv_free_low_blocks=vitals.pool_ceiling_blocks,
        kv_exhaustion_seconds=FOREVER_SECONDS,
        device_exhaustion_seconds=FOREVER_SECONDS,
    )


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, tuple):
        return tuple(a + b for a, b in zip(one, other, strict=True))
    return one + other


def _zero(count: Any) -> Any:
    match count:
        case tuple():
            return (0,) * len(count)
        case dict():
            return {}
    return 0
