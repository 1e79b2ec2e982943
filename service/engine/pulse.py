"""The pulse of an engine: a counter in memory that it shares with the front.

The engine counts whatever it comes on with: turns of its loop, layers of a step. A message
could not say that: none is sent while a long step is computed, and to send one would cost a
system call for each layer. The front compares two readings (`service.front.watchdog`).
"""

from __future__ import annotations

import mmap
import os

_COUNTER_BYTES = 8


def unwatched() -> None:
    """The beat of an engine that nobody watches."""


def open_pulse() -> int:
    """A file in memory for one pulse, at 0; two processes that map it share the counter.

    Closed by the caller; a `Pulse` outlives it. Raises OSError.
    """
    fd = os.memfd_create("plimsoll-pulse")
    try:
        os.ftruncate(fd, _COUNTER_BYTES)
    except OSError:
        os.close(fd)
        raise
    return fd


class Pulse:
    """One process beats, the others read.

    A reading that falls into a write is no danger: all that is asked is whether it changed.
    """

    def __init__(self, fd: int) -> None:
        """Maps what `open_pulse` made; raises OSError."""
        self._count = memoryview(mmap.mmap(fd, _COUNTER_BYTES)).cast("Q")

    @property
    def beats(self) -> int:
        """How often it has beaten."""
        return self._count[0]

    def beat(self) -> None:
        """Says that the engine has come on. Costs less than a microsecond."""
        self._count[0] += 1
