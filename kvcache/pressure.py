"""Pressure on memory: levels, and what is forecast."""

from __future__ import annotations

import enum

# A forecast of "not in sight". Finite, so that it can be drawn, compared and averaged.
FOREVER_SECONDS = 86_400.0


class PressureLevel(enum.IntEnum):
    """How near the end of memory is. The numbers are those of `plimsoll.v1.PressureLevel`."""

    NORMAL = 1
    ELEVATED = 2
    HIGH = 3
    CRITICAL = 4
