"""Spans as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Value: TypeAlias = "str | bool | int | float | Sequence[str]"
Attributes: TypeAlias = "dict[str, Value]"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span; the time is monotonic."""

    name: str
    at_seconds: float
    attributes: Attributes


@dataclass(slots=True)
class SpanRecord:
    """One span; times are monotonic."""

    name: str
    span_id: str  # 16 hex digits
    parent_span_id: str | None
    begin_seconds: float
    end_seconds: float | None = None  # None: it is open
    attributes: Attributes = field(default_factory=dict)
    events: list[SpanEvent] = field(default_factory=list)
    error: str = ""  # what went wrong, in words; empty: nothing


@dataclass(frozen=True, slots=True)
class SpanTree:
    """All spans of one request; the first is the root, and the others are its children."""

    trace_id: str  # 32 hex digits
    state: str  # of the client, see `TraceContext`
    is_sampled: bool
    spans: list[SpanRecord]
    is_troubled: bool  # something happened to it that an operator wants to see
