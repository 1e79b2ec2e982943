"""Token counts and times of one request, right also when the engine was replaced meanwhile.

Times are taken where the front sees the event: the engine's own are lost with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.messages import Finished
from service.front.events import Timings, Usage


@dataclass(slots=True)
class Account:
    """Sums over all candidates. All seconds are monotonic times or durations."""

    arrival_seconds: float
    prompt_tokens: int
    scheduled_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    first_sent_seconds: float | None = None
    cached_prompt_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    preempted_seconds: float = 0.0
    blocked_on_client_seconds: float = 0.0

    def first_scheduled(self, scheduled_seconds: float, cached_tokens: int) -> None:
        """The first candidate entered a batch for the first time."""
        self.scheduled_seconds = scheduled_seconds
        self.cached_prompt_tokens = cached_tokens

    def resumed(self, known_tokens: int, cached_tokens: int) -> None:
        """A new engine computes again what a dead one had computed."""
        self.recomputed_tokens += max(0, known_tokens - cached_tokens)

    def received(self, now_seconds: float) -> bool:
        """Tokens came from the engine. True: the first ones."""
        is_first = self.first_token_seconds is None
        if is_first:
            self.first_token_seconds = now_seconds
        self.last_token_seconds = now_seconds
        return is_first

    def sent(self, now_seconds: float) -> None:
        """Tokens were handed to the transport."""
        if self.first_sent_seconds is None:
            self.first_sent_seconds = now_seconds

    def finished(self, finished: Finished) -> None:
        """Adds the figures that the engine kept for one sequence."""
        self.recomputed_tokens += finished.recomputed_tokens
        self.preemptions += finished.preemptions
        self.preempted_seconds += finished.preempted_seconds

    @property
    def prefill_seconds(self) -> float:
        """From the first batch to the first token; 0 until there is one."""
        if self.scheduled_seconds is None or self.first_token_seconds is None:
            return 0.0
        return self.first_token_seconds - self.scheduled_seconds

    def usage(self, completion_tokens: int) -> Usage:
        """The figures of the end message, with the tokens generated."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=completion_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            recomputed_tokens=self.recomputed_tokens,
        )

    def timings(self, now_seconds: float) -> Timings:
        """The figures of the end message; a phase that was not reached took no time."""
        arrival = self.arrival_seconds
        scheduled = self.scheduled_seconds
        first_token = self.first_token_seconds
        last_token = self.last_token_seconds
        first_sent = self.first_sent_seconds
        return Timings(
            queue_seconds=(now_seconds if scheduled is None else scheduled) - arrival,
            prefill_seconds=self.prefill_seconds,
            time_to_first_token_seconds=0.0 if first_sent is None else first_sent - arrival,
            decode_seconds=(
                0.0 if first_token is None or last_token is None else last_token - first_token
            ),
            preempted_seconds=self.preempted_seconds,
            blocked_on_client_seconds=self.blocked_on_client_seconds,
            preemption_count=self.preemptions,
        )
