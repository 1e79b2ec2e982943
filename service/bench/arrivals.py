"""When the next request is sent."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol


class Arrivals(Protocol):
    """Lets requests go one by one."""

    async def next(self) -> None:
        """Returns when the next request may be sent."""

    def finished(self) -> None:
        """A request ended, in whatever way."""


class ClosedLoop:
    """A fixed number of clients, each sending its next request when the last has ended.

    Measures what the server can do; it cannot overload it.
    """

    def __init__(self, concurrency: int) -> None:
        self._idle = asyncio.Semaphore(concurrency)

    async def next(self) -> None:
        await self._idle.acquire()

    def finished(self) -> None:
        self._idle.release()


class OpenLoop:
    """Poisson arrivals at a given rate, whatever the server does.

    Arrival times are fixed by the seed. A sender that is late sends at once and does not
    shift the later ones, so that a stall of the client does not lower the rate.
    """

    def __init__(self, requests_per_second: float, seed: int) -> None:
        self._rate = requests_per_second
        self._rng = random.Random(seed)
        self._due_seconds: float | None = None

    def gap_seconds(self) -> float:
        """The time between two arrivals, drawn."""
        return self._rng.expovariate(self._rate)

    async def next(self) -> None:
        now = time.perf_counter()
        self._due_seconds = now if self._due_seconds is None else self._due_seconds
        self._due_seconds += self.gap_seconds()
        await asyncio.sleep(max(0.0, self._due_seconds - now))

    def finished(self) -> None:
        """An open loop does not care."""
