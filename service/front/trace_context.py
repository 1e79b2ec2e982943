"""Where a request belongs in a trace: plain data, that neither gRPC nor OpenTelemetry makes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The span of one request, named before it begins. Source: W3C Trace Context."""

    trace_id: str  # 32 hex digits
    span_id: str  # 16 hex digits: the root span of this request here
    parent_span_id: str | None  # of the client; None: the trace begins here
    is_sampled: bool  # kept by the client's word or by ratio; others are kept only if troubled
    state: str = ""  # what the client's `tracestate` said

    @property
    def ids(self) -> dict[str, str]:
        """What log records carry, under the names that OpenTelemetry gives them."""
        return {"trace_id": self.trace_id, "span_id": self.span_id}


def new_span_id() -> str:
    """Random and not zero, which would be no id."""
    return f"{secrets.randbelow(2**64 - 1) + 1:016x}"
