"""Measured speeds, from which the preemption planner tells what a victim costs."""

from __future__ import annotations

from dataclasses import dataclass

from kvcache.errors import InvalidArgumentError


class RateMeter:
    """Amount per second, averaged over the recent past.

    Amounts and seconds are averaged apart, with exponentially falling weights, and divided at
    the end: a short measurement then counts for as little as it lasted.
    """

    __slots__ = ("_amount", "_seconds", "_weight")

    def __init__(self, weight: float = 0.2) -> None:
        """`weight` in (0, 1] is that of the newest measurement."""
        if not 0.0 < weight <= 1.0:
            raise InvalidArgumentError("weight", weight, "above 0 and at most 1")
        self._weight = weight
        self._amount = 0.0
        self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Takes note that `amount` was done in `seconds`; ignored unless both are positive.

        A clock may stand still over something short: no speed follows from that.
        """
        if amount <= 0.0 or seconds <= 0.0:
            return
        self._amount += self._weight * (amount - self._amount)
        self._seconds += self._weight * (seconds - self._seconds)

    @property
    def per_second(self) -> float | None:
        """The average, or None while nothing was measured."""
        return self._amount / self._seconds if self._seconds else None


@dataclass(frozen=True, slots=True)
class PreemptionRates:
    """What it takes to bring K and V back, as measured; None: not measured yet."""

    block_tokens: int
    block_bytes: int = 0
    prefill_tokens_per_second: float | None = None
    copy_bytes_per_second: float | None = None  # between pool and host, one way
    stall_seconds: float = 0.0  # what a victim loses beside its blocks: at least one step

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise InvalidArgumentError("block_tokens", self.block_tokens, "at least 1")
        for name in ("block_bytes", "stall_seconds"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(name, getattr(self, name), "at least 0")
        for name in ("prefill_tokens_per_second", "copy_bytes_per_second"):
            speed = getattr(self, name)
            if speed is not None and not speed > 0:
                raise InvalidArgumentError(name, speed, "above 0, or None")

    def recompute_seconds(self, tokens: int) -> float:
        """Time to compute tokens again. While no speed is measured, just their number."""
        return tokens / (self.prefill_tokens_per_second or 1.0)

    def swap_seconds(self, blocks: int) -> float | None:
        """Time to copy blocks to the host and back; None while it cannot be compared."""
        if self.copy_bytes_per_second is None or self.prefill_tokens_per_second is None:
            return None
        return 2 * blocks * self.block_bytes / self.copy_bytes_per_second
