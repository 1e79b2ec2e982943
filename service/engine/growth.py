"""How soon the running sequences will have used up the pool."""

from __future__ import annotations

import numpy as np

from kvcache import CacheManager
from kvcache.forecast import OutputLengths, forecast_exhaustion
from service.engine.messages import FinishReason
from service.engine.request import Sequence
from service.engine.scheduler import Scheduler
from service.engine.step_meter import StepMeter

_BY_ITSELF = (FinishReason.EOS, FinishReason.STOP)


class Growth:
    """Learns how long outputs are here, and forecasts what the running ones still need."""

    def __init__(
        self,
        manager: CacheManager,
        scheduler: Scheduler,
        meter: StepMeter,
        max_context_tokens: int,
    ) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._meter = meter
        self._max_context_tokens = max_context_tokens
        self._lengths = OutputLengths()

    def learn(self, sequence: Sequence, reason: FinishReason) -> None:
        """Takes note of a sequence that is over."""
        self._lengths.add(sequence.output_tokens, ended_by_itself=reason in _BY_ITSELF)

    def exhaustion_seconds(self) -> float:
        """Time until no block is available, at the present speed; see `kvcache.forecast`."""
        running = self._scheduler.running()
        numbers = np.array([s.sequence_id for s in running], np.int64)
        outputs = np.array([s.output_tokens for s in running], np.int64)
        limits = np.array([self._output_limit(s) for s in running], np.int64)
        stats = self._manager.stats()
        step_seconds = self._meter.step_seconds
        return forecast_exhaustion(
            np.array([s.num_tokens for s in running], np.int64),
            self._lengths.likely_remaining(numbers, outputs, limits),
            held_blocks=stats.held,
            available_blocks=stats.free + stats.cached + stats.expected,
            block_tokens=self._manager.block_tokens,
            steps_per_second=1.0 / step_seconds if step_seconds else 0.0,
        )

    def _output_limit(self, sequence: Sequence) -> int:
        room_tokens = self._max_context_tokens - sequence.prompt_tokens
        return min(sequence.spec.max_tokens, room_tokens)
