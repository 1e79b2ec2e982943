"""The trace of a call, as its client named it in gRPC metadata.

Source: W3C Trace Context, level 1, sections 3.2 and 3.3.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from service.front.trace_context import TraceContext, new_span_id

PARENT_KEY = "traceparent"
STATE_KEY = "tracestate"

_MAX_STATE_MEMBERS = 32
_MAX_STATE_CHARACTERS = 512  # that everybody has to pass on; a longer one need not be kept
_SAMPLED_FLAG = 0x01

# Version, trace id, parent id, flags; only versions after 00 may have more.
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


def trace_context(metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext | None:
    """A new span below that of the client; None when it named none, or none that is valid.

    The standard asks to ignore what is malformed, so a bad header never fails a call; a bad
    `tracestate` costs only itself.
    """
    entries = list(metadata)
    parents = [value for key, value in entries if key == PARENT_KEY]
    if len(parents) != 1 or not isinstance(parents[0], str):
        return None
    parts = _PARENT.fullmatch(parents[0].strip(" \t"))
    if parts is None:
        return None
    version, trace_id, parent_id, flags, more = parts.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16):
        return None
    if not int(parent_id, 16):
        return None
    return TraceContext(
        trace_id=trace_id,
        span_id=new_span_id(),
        parent_span_id=parent_id,
        is_sampled=bool(int(flags, 16) & _SAMPLED_FLAG),
        state=_state(value for key, value in entries if key == STATE_KEY),
    )


def new_trace(ratio: float) -> TraceContext:
    """A trace that begins here, one of which `ratio` are sampled.

    The decision is in the id, as OpenTelemetry's TraceIdRatioBased takes it, so that others which
    sample by the same ratio keep the same traces.
    """
    trace_id = secrets.randbelow(2**128 - 1) + 1
    return TraceContext(
        trace_id=f"{trace_id:032x}",
        span_id=new_span_id(),
        parent_span_id=None,
        is_sampled=trace_id % 2**64 < round(ratio * 2**64),
    )


def _state(values: Iterable[str | bytes]) -> str:
    """The members of all `tracestate` headers in their order; empty when one is malformed."""
    whole = ",".join(value for value in values if isinstance(value, str))
    members = [member for part in whole.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > _MAX_STATE_MEMBERS or len(keys) < len(members):
        return ""
    if not all(_STATE_MEMBER.fullmatch(member) for member in members):
        return ""
    state = ",".join(members)
    return state if len(state) <= _MAX_STATE_CHARACTERS else ""
