"""Figures of records: pure functions.

Latencies are the client's. TTFT is the time from sending to the first message with tokens.
ITL (inter-token latency) is per token: when a message carries k tokens and came g seconds
after the one before, it counts as k gaps of g / k. Tokens that came together with the
first one have no gap. TPOT of a request is the mean of its gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.bench.record import Outcome, RequestRecord

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles in seconds; percentiles interpolate linearly."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    maximum: float


def distribution(values: Seconds | Sequence[float]) -> Distribution | None:
    """None for no values."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return None
    p50, p90, p99 = np.percentile(array, (50, 90, 99)).tolist()
    return Distribution(array.size, float(array.mean()), p50, p90, p99, float(array.max()))


def ttft_seconds(record: RequestRecord) -> float | None:
    """Time to the first token; None when there was none."""
    return record.arrivals[0].seconds - record.sent_seconds if record.arrivals else None


def inter_token_seconds(record: RequestRecord) -> Seconds:
    """The gap before each token after those of the first message."""
    times = np.array([arrival.seconds for arrival in record.arrivals])
    tokens = np.array([arrival.tokens for arrival in record.arrivals], dtype=np.int64)
    if times.size < 2:
        return np.empty(0)
    return np.repeat(np.diff(times) / tokens[1:], tokens[1:])


def tpot_seconds(record: RequestRecord) -> float | None:
    """Mean time per output token after the first message; None when nothing followed it."""
    gaps = inter_token_seconds(record)
    return float(gaps.mean()) if gaps.size else None


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What a request must keep to be good; None: no such limit."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None

    def is_met(self, record: RequestRecord) -> bool:
        """Whether the request ended well and within the limits."""
        first, pace = ttft_seconds(record), tpot_seconds(record)
        return (
            record.outcome is Outcome.OK
            and _within(first, self.ttft_seconds)
            and _within(pace, self.tpot_seconds)
        )


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or value is None or value <= limit


def all_gaps(records: Iterable[RequestRecord]) -> Seconds:
    """The inter-token gaps of all records together."""
    gaps = [inter_token_seconds(record) for record in records]
    return np.concatenate(gaps) if gaps else np.empty(0)


def tokens_over_time(
    records: Iterable[RequestRecord], duration_seconds: float, bins: int
) -> NDArray[np.int64]:
    """Output tokens received in each of `bins` equal parts of the run."""
    counts = np.zeros(bins, dtype=np.int64)
    bin_seconds = duration_seconds / bins
    for record in records:
        for arrival in record.arrivals:
            counts[min(int(arrival.seconds / bin_seconds), bins - 1)] += arrival.tokens
    return counts
