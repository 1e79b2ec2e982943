"""What was seen of the streams of a drill. Times are seconds since its beginning."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


class Ending(enum.StrEnum):
    """How a request ended."""

    DONE = "done"
    REFUSED = "refused"  # before its start, for a while: it is asked again
    DROPPED = "dropped"  # by an error, after its start or for good
    CANCELLED = "cancelled"  # by the drill itself


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message with tokens."""

    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Reference:
    """What an undisturbed server answers to a prompt."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(slots=True)
class StreamRecord:
    """One request."""

    number: int
    prompt: int  # index of its prompt and its reference
    began_seconds: float
    ended_seconds: float | None = None  # None: it is live
    ending: Ending | None = None
    reason: str = ""  # finish reason of a DONE one, error of the others
    arrivals: list[Arrival] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    reported_tokens: int | None = None  # output tokens as the server counts them at the end
    recomputed_tokens: int = 0
    preemptions: int = 0

    @property
    def last_seconds(self) -> float | None:
        """When its last tokens came; None: there were none."""
        return self.arrivals[-1].seconds if self.arrivals else None

    def is_live_in(self, begin_seconds: float, end_seconds: float) -> bool:
        """Whether it was live at some time between the two."""
        ended = float("inf") if self.ended_seconds is None else self.ended_seconds
        return self.began_seconds <= end_seconds and ended >= begin_seconds


def inter_token_seconds(
    records: Iterable[StreamRecord], begin_seconds: float, end_seconds: float
) -> NDArray[np.float64]:
    """Gaps before tokens that came between the two times, of all streams together.

    k tokens in one message share the gap before it.
    """
    gaps: list[float] = []
    for record in records:
        for before, arrival in itertools.pairwise(record.arrivals):
            if begin_seconds <= arrival.seconds < end_seconds:
                gap = (arrival.seconds - before.seconds) / arrival.tokens
                gaps.extend([gap] * arrival.tokens)
    return np.array(gaps, dtype=np.float64)


def longest_silence(
    records: Iterable[StreamRecord], begin_seconds: float, end_seconds: float
) -> tuple[float, float]:
    """Begin and end of the longest time between the two without a token of any stream."""
    times = sorted(
        arrival.seconds
        for record in records
        for arrival in record.arrivals
        if begin_seconds <= arrival.seconds <= end_seconds
    )
    edges = [begin_seconds, *times, end_seconds]
    return max(
        itertools.pairwise(edges),
        key=lambda gap: gap[1] - gap[0],
    )


def tokens_over_time(
    records: Sequence[StreamRecord], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Tokens a second of all streams in each bin."""
    times = [arrival.seconds for record in records for arrival in record.arrivals]
    tokens = [arrival.tokens for record in records for arrival in record.arrivals]
    counts, _ = np.histogram(times, edges, weights=tokens)
    return np.asarray(counts / np.diff(edges), dtype=np.float64)
