"""Engine counters that go on when the engine is replaced."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from service.engine.figures import EngineStats, TierFigures

_COUNTERS = (
    "steps",
    "prefill_tokens",
    "decode_tokens",
    "lookup_tokens",
    "hit_tokens",
    "evicted_blocks",
    "preemptions",
    "trims",
    "swaps",
)
_OCCUPANCY = ("running", "waiting", "preempted")
_BLOCKS_IN_USE = (
    "blocks_cached",
    "blocks_held",
    "blocks_reserved",
    "blocks_shared",
    "blocks_kept",
)
_TIER_COUNTERS = (
    "spilled_blocks",
    "lost_blocks",
    "loaded_blocks",
    "expired_loads",
    "dropped_blocks",
    "failures",
)
_TIER_OCCUPANCY = ("host_bytes", "loads")  # what is on disk outlives the engine

Numbers = TypeVar("Numbers", EngineStats, TierFigures)


class EngineTotals:
    """Adds the counters of dead engines to those of the living one."""

    def __init__(self) -> None:
        self._latest: EngineStats | None = None
        self._before: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        self._tiers_before: dict[str, int] = dict.fromkeys(_TIER_COUNTERS, 0)

    def update(self, stats: EngineStats) -> None:
        """Takes the newest numbers of the present engine."""
        self._latest = stats

    def engine_lost(self) -> None:
        """The next numbers come from an engine that counts from 0, with an empty pool."""
        latest = self._latest
        if latest is None:
            return
        self._latest = msgspec.structs.replace(
            _taken_over(latest, self._before, (*_OCCUPANCY, *_BLOCKS_IN_USE)),
            blocks_free=latest.blocks_total,
            tiers=latest.tiers and _taken_over(latest.tiers, self._tiers_before, _TIER_OCCUPANCY),
        )

    def current(self) -> EngineStats | None:
        """Gauges of the present engine, counters of all; None before the first numbers."""
        latest = self._latest
        if latest is None:
            return None
        return msgspec.structs.replace(
            _with(latest, self._before),
            tiers=latest.tiers and _with(latest.tiers, self._tiers_before),
        )


def _taken_over(numbers: Numbers, before: dict[str, int], occupancy: tuple[str, ...]) -> Numbers:
    """Adds the counters to `before`; the numbers without them, and with nothing in use."""
    for counter in before:
        before[counter] += getattr(numbers, counter)
    return msgspec.structs.replace(numbers, **dict.fromkeys((*before, *occupancy), 0))


def _with(numbers: Numbers, before: dict[str, int]) -> Numbers:
    sums = {counter: count + getattr(numbers, counter) for counter, count in before.items()}
    return msgspec.structs.replace(numbers, **sums)
