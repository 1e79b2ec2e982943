"""How much device memory the next step may take."""

from __future__ import annotations

from service.engine.pace import Pace
from service.engine.policy import SchedulerLimits
from service.engine.runner import Runner
from service.engine.scheduler import Scheduler


class Demand:
    """The largest steps that the present sequences can lead to, in bytes."""

    def __init__(self, runner: Runner, limits: SchedulerLimits, scheduler: Scheduler) -> None:
        self._runner = runner
        self._limits = limits
        self._scheduler = scheduler

    def at_rest_bytes(self) -> int:
        """Of a step as large as the settings allow."""
        return self._bytes(self._limits.max_step_tokens, self._limits.running_sequences)

    def narrow_bytes(self, prefill_tokens: int) -> int:
        """Of a step with `prefill_tokens` beside what runs, when nobody is admitted."""
        return self._bytes(
            min(self._limits.max_step_tokens, prefill_tokens + self._scheduler.running_count),
            self._scheduler.running_count,
        )

    def bytes_at(self, pace: Pace) -> int:
        """Of a step at a pace."""
        if not pace.admits:
            tokens = min(pace.step_tokens, pace.prefill_tokens + self._scheduler.running_count)
            return self._bytes(tokens, self._scheduler.running_count)
        return self._bytes(pace.step_tokens, self._limits.running_sequences)

    def _bytes(self, tokens: int, sequences: int) -> int:
        rows = sequences
        if self._scheduler.wants_prompt_logprobs:
            rows += self._limits.prompt_logprob_rows
        return self._runner.step_bytes(
            tokens, max(1, min(tokens, rows)), max(1, self._scheduler.largest_tokens())
        )
