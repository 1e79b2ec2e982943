"""Integrals over simulated time, and a bounded record of how it went."""

from __future__ import annotations

from kvcache.replay.report import TimelineSample

_MOST_SAMPLES = 4096


class Timeline:
    """Samples in steady distance: when there are too many, every second one is dropped."""

    def __init__(self) -> None:
        self.samples: list[TimelineSample] = []
        self._distance_steps = 1
        self._steps = 0

    def add(self, sample: TimelineSample) -> None:
        """Notes the state after a step, or not."""
        if self._steps % self._distance_steps == 0:
            self.samples.append(sample)
            if len(self.samples) == _MOST_SAMPLES:
                del self.samples[1::2]
                self._distance_steps *= 2
        self._steps += 1


class PoolIntegral:
    """How full the pool was, weighted by time."""

    def __init__(self, block_tokens: int, load_line_blocks: float) -> None:
        self._block_tokens = block_tokens
        self._load_line_blocks = load_line_blocks
        self._held_slot_seconds = 0.0
        self._unused_slot_seconds = 0.0
        self.load_line_seconds = 0.0

    def add(self, seconds: float, held_blocks: int, unused_slots: int) -> None:
        """For `seconds`, `held_blocks` were held and `unused_slots` of them had no token."""
        self._held_slot_seconds += seconds * held_blocks * self._block_tokens
        self._unused_slot_seconds += seconds * unused_slots
        if held_blocks >= self._load_line_blocks:
            self.load_line_seconds += seconds

    @property
    def waste(self) -> float:
        """Unused share of the held slots; 0 if nothing was held."""
        held = self._held_slot_seconds
        return self._unused_slot_seconds / held if held else 0.0
