"""What became of spans."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SpanFigures:
    """Spans since the start, by what became of them."""

    exported: int = 0  # a collector has taken them
    dropped: int = 0  # left out, as too many waited
    failed: int = 0  # a collector did not take them
