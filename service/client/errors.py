"""What can go wrong in a call, with the facts the server sent.

The server describes its errors with `google.rpc` details in the trailing metadata
(`grpc-status-details-bin`); here they become attributes of one exception type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

_DETAILS_KEY = "grpc-status-details-bin"
_PUSHBACK_KEY = "grpc-retry-pushback-ms"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of the request that the server refused."""

    field: str  # path, e.g. "options.sampling.temperature"
    description: str

    def __str__(self) -> str:
        named = self.field in self.description
        return self.description if named else f"{self.field}: {self.description}"


@dataclass(slots=True, eq=False)
class PlimsollError(Exception):
    """A call that failed.

    `reason` is the stable name of the cause (`QUEUE_FULL`, `DRAINING`, `INVALID_FIELD` …),
    empty when the error came from the transport; `metadata` carries its figures.
    `retry_after_seconds` is the server's wish, None when it had none; `may_retry` is False
    when the server asked not to be tried again.
    """

    message: str
    code: grpc.StatusCode
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_seconds: float | None = None
    may_retry: bool = True
    violations: tuple[FieldViolation, ...] = ()

    def __str__(self) -> str:
        name = f"{self.code.name} ({self.reason})" if self.reason else self.code.name
        violations = "; ".join(map(str, self.violations))
        return f"{name}: {violations or self.message or 'no details'}"

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed a little later.

        True when the server cannot be reached or is going away, lost its engine, or
        refused for load with a retry hint. RESOURCE_EXHAUSTED without a hint is a
        property of the request (message too large, reader too slow).
        """
        if not self.may_retry:
            return False
        if self.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return self.retry_after_seconds is not None
        return self.breaks_streams

    @property
    def breaks_streams(self) -> bool:
        """Whether the error says something about the server or the way to it only."""
        return self.code is grpc.StatusCode.UNAVAILABLE or (
            self.code is grpc.StatusCode.ABORTED and self.reason == "ENGINE_LOST"
        )


@dataclass(slots=True, eq=False)
class StreamBroken(Exception):
    """A stream ended early and could not be resumed.

    `tokens_received` counts all candidates; `text` is what candidate 0 had so far.
    """

    why: str
    tokens_received: int
    text: str
    cause: PlimsollError | None = None

    def __str__(self) -> str:
        because = f" after {self.cause}" if self.cause else ""
        return f"stream broken at {self.tokens_received} tokens{because}: {self.why}"


def error_from_rpc(rpc_error: aio.AioRpcError) -> PlimsollError:
    """Reads code, details and trailers of a failed RPC; unreadable details are left out."""
    error = PlimsollError(message=rpc_error.details() or "", code=rpc_error.code())
    pairs = cast("Iterable[tuple[str, str | bytes]]", rpc_error.trailing_metadata() or ())
    trailers = dict(pairs)
    packed = trailers.get(_DETAILS_KEY)
    if isinstance(packed, bytes):
        _add_details(error, packed)
    pushback = trailers.get(_PUSHBACK_KEY)
    if pushback is not None:
        _add_pushback(error, pushback)
    return error


def _add_details(error: PlimsollError, packed: bytes) -> None:
    try:
        details = status_pb2.Status.FromString(packed).details
    except DecodeError:  # a proxy's own idea of the field; code and message still hold
        return
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    bad_request = error_details_pb2.BadRequest()
    for detail in details:
        if detail.Unpack(info):
            error.reason = info.reason
            error.metadata = dict(info.metadata)
        elif detail.Unpack(retry):
            error.retry_after_seconds = retry.retry_delay.ToTimedelta().total_seconds()
        elif detail.Unpack(bad_request):
            error.violations = _violations(bad_request.field_violations)


def _violations(
    violations: Sequence[error_details_pb2.BadRequest.FieldViolation],
) -> tuple[FieldViolation, ...]:
    return tuple(FieldViolation(v.field, v.description) for v in violations)


def _add_pushback(error: PlimsollError, value: str | bytes) -> None:
    """gRFC A6: a negative or unreadable push-back means "do not try again"."""
    try:
        delay_ms = int(value)
    except ValueError:
        delay_ms = -1
    if delay_ms < 0:
        error.may_retry = False
    else:
        error.retry_after_seconds = delay_ms / 1e3
