"""What was seen of one request."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Outcome(enum.StrEnum):
    """How a request ended."""

    OK = "ok"
    REFUSED = "refused"  # before its first token, for load or state of the server
    FAILED = "failed"
    CANCELLED = "cancelled"  # by the end of the benchmark


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message with tokens."""

    seconds: float  # since the beginning of the run
    tokens: int


@dataclass(slots=True)
class RequestRecord:
    """One request of a run. Times are in seconds since the beginning of the run."""

    number: int
    sent_seconds: float
    ended_seconds: float = 0.0
    outcome: Outcome = Outcome.CANCELLED
    reason: str = ""  # finish reason of an OK one, error reason of the others
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    arrivals: list[Arrival] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        """Tokens received."""
        return sum(arrival.tokens for arrival in self.arrivals)
