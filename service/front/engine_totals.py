"""Engine counters that go on when the engine is replaced."""

from __future__ import annotations

import msgspec

from service.engine.messages import EngineStats

_COUNTERS = (
    "steps",
    "prefill_tokens",
    "decode_tokens",
    "lookup_tokens",
    "hit_tokens",
    "evicted_blocks",
    "preemptions",
)
_OCCUPANCY = ("running", "waiting", "preempted")
_BLOCKS_IN_USE = ("blocks_cached", "blocks_held", "blocks_reserved", "blocks_shared")


class EngineTotals:
    """Adds the counters of dead engines to those of the living one."""

    def __init__(self) -> None:
        self._latest: EngineStats | None = None
        self._before: dict[str, int] = dict.fromkeys(_COUNTERS, 0)

    def update(self, stats: EngineStats) -> None:
        """Takes the newest numbers of the present engine."""
        self._latest = stats

    def engine_lost(self) -> None:
        """The next numbers come from an engine that counts from 0, with an empty pool."""
        latest = self._latest
        if latest is None:
            return
        for counter in _COUNTERS:
            self._before[counter] += getattr(latest, counter)
        empty = dict.fromkeys((*_COUNTERS, *_OCCUPANCY, *_BLOCKS_IN_USE), 0)
        self._latest = msgspec.structs.replace(latest, blocks_free=latest.blocks_total, **empty)

    def current(self) -> EngineStats | None:
        """Gauges of the present engine, counters of all; None before the first numbers."""
        if self._latest is None:
            return None
        sums = {
            counter: before + getattr(self._latest, counter)
            for counter, before in self._before.items()
        }
        return msgspec.structs.replace(self._latest, **sums)
