"""When to try again: jittered exponential back-off under a budget and a deadline."""

from __future__ import annotations

import random
from dataclasses import dataclass

from service.client.errors import PlimsollError

_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Back-off of one kind of call.

    The delay before attempt k (from 1) is `initial_seconds * multiplier**(k-1)`, at most
    `max_seconds`, times a random factor of 0.8 to 1.2 (gRFC A6). A server's push-back is a
    floor under it: the client never comes back earlier than it was told to.
    """

    max_attempts: int = 4  # the first one included
    initial_seconds: float = 0.2
    multiplier: float = 2.0
    max_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts: {self.max_attempts} is less than 1")
        if self.initial_seconds <= 0 or self.max_seconds < self.initial_seconds:
            raise ValueError(
                f"0 < initial_seconds ({self.initial_seconds}) <= max_seconds"
                f" ({self.max_seconds}) does not hold"
            )
        if self.multiplier < 1:
            raise ValueError(f"multiplier: {self.multiplier} is less than 1")

    def delay_seconds(
        self, attempt: int, retry_after_seconds: float | None, rng: random.Random
    ) -> float:
        """The pause after failed attempt number `attempt` (from 1)."""
        backoff = min(self.max_seconds, self.initial_seconds * self.multiplier ** (attempt - 1))
        jittered = backoff * rng.uniform(1 - _JITTER, 1 + _JITTER)
        if retry_after_seconds is None:
            return jittered
        return max(jittered, retry_after_seconds * rng.uniform(1, 1 + _JITTER))


NO_RETRY = RetryPolicy(max_attempts=1)
# Long enough for a server to be replaced or to load its model again: about 35 s.
PATIENT = RetryPolicy(max_attempts=11, initial_seconds=0.2)


class RetryBudget:
    """Stops a fleet of clients from multiplying the load of a failing server.

    The token bucket of gRFC A6: a failure costs one token, a success gives
    `tokens_per_success` back, and retries are allowed while more than half is left. One
    budget belongs to one client and is shared by all its calls.
    """

    def __init__(self, capacity: float = 100.0, tokens_per_success: float = 0.5) -> None:
        self._capacity = capacity
        self._tokens = capacity
        self._tokens_per_success = tokens_per_success

    def record_success(self) -> None:
        self._tokens = min(self._capacity, self._tokens + self._tokens_per_success)

    def record_failure(self) -> None:
        self._tokens = max(0.0, self._tokens - 1)

    @property
    def allows_retry(self) -> bool:
        return self._tokens > self._capacity / 2


class RetryState:
    """Counts the attempts of one call; without a budget these alone limit it."""

    def __init__(self, policy: RetryPolicy, budget: RetryBudget | None, rng: random.Random) -> None:
        self._policy = policy
        self._budget = budget
        self._rng = rng
        self._attempt = 0

    def pause_seconds(self, error: PlimsollError, remaining_seconds: float | None) -> float | None:
        """How long to wait before the next attempt; None: give up with `error`.

        Args:
            error: why the last attempt failed.
            remaining_seconds: what is left of the call's time; None: no limit.
        """
        self._attempt += 1
        if not error.is_transient:
            return None
        if self._budget is not None:
            self._budget.record_failure()
            if not self._budget.allows_retry:
                return None
        if self._attempt >= self._policy.max_attempts:
            return None
        pause = self._policy.delay_seconds(self._attempt, error.retry_after_seconds, self._rng)
        if remaining_seconds is not None and pause >= remaining_seconds:
            return None
        return pause

    def reset(self) -> None:
        """Forgets the failures so far: the call made progress."""
        self._attempt = 0
