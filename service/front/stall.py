"""Finds requests whose reader has stalled, with one timer for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class StallWatch(Generic[T]):
    """Calls back for each item that was added more than `limit_seconds` ago.

    Items are removed far more often than they expire, so removing touches no timer: the
    timer is set for the oldest item and, when that one has gone meanwhile, set again.
    With no item added there is no timer at all.
    """

    def __init__(self, limit_seconds: float, on_stalled: Callable[[T], None]) -> None:
        self._limit_seconds = limit_seconds
        self._on_stalled = on_stalled
        self._since_seconds: dict[T, float] = {}  # oldest first
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since_seconds)

    def add(self, item: T, now_seconds: float) -> None:
        """Begins to watch an item that is not watched."""
        self._since_seconds[item] = now_seconds
        if self._timer is None:
            self._arm(now_seconds)

    def remove(self, item: T) -> None:
        """Stops watching. Idempotent."""
        self._since_seconds.pop(item, None)

    def close(self) -> None:
        """Forgets all items and the timer."""
        self._since_seconds.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, now_seconds: float) -> None:
        oldest_seconds = next(iter(self._since_seconds.values()))
        delay_seconds = oldest_seconds + self._limit_seconds - now_seconds
        self._timer = asyncio.get_running_loop().call_later(max(0.0, delay_seconds), self._check)

    def _check(self) -> None:
        self._timer = None
        now_seconds = time.monotonic()
        while self._since_seconds:
            item, since_seconds = next(iter(self._since_seconds.items()))
            if now_seconds - since_seconds < self._limit_seconds:
                self._arm(now_seconds)
                return
            del self._since_seconds[item]
            self._on_stalled(item)
