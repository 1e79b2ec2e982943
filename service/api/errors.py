"""Every way a call can fail, and what the client is told about it.

The table `FAULTS` maps the exceptions of `service.front` and of this module to a status
code, a stable reason (google.rpc.ErrorInfo, domain `plimsoll.v1`) and the facts a program needs
to react: fields to fix, a delay to wait, sizes to compare. An exception that is not in the table
is a bug: the client gets a fixed text and the id to report, the log gets the exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf import duration_pb2, message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from service.front.events import (
    AbortedByAdmin,
    DeadlinePassed,
    DeadlineUnreachable,
    DeviceExhausted,
    Draining,
    DuplicateRequestId,
    EngineCrashedByRequest,
    EngineLost,
    ExceedsCapacity,
    ModelFailed,
    NotReady,
    QueueFull,
    SlowReader,
)
from service.front.faults import FaultsDisabled
from service.front.state import MemoryShort

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

ERROR_DOMAIN = "plimsoll.v1"
PUSHBACK_KEY = "grpc-retry-pushback-ms"  # the only push-back that gRPC clients act on by themselves
REQUEST_ID_KEY = "x-request-id"
# Status and details travel in trailers, of which many peers accept 8 KiB.
SHOWN_VIOLATIONS = 8
INTERNAL_MESSAGE = "internal error; report the request id"


@dataclass(slots=True, frozen=True)
class FieldViolation:
    """One field that is out of its limits."""

    path: str  # as in `options.sampling.temperature`
    value: object  # what was sent; shortened before it is shown
    limit: str  # what would be accepted, or why this is not

    def __str__(self) -> str:
        # Reasons may come from a chat template, and so from the client.
        return f"{self.path} = {_shorten(ascii(self.value), 64)}: {_shorten(self.limit, 256)}"


class ApiError(Exception):
    """A call refused by the API layer itself. Subclasses carry the facts."""


@dataclass(slots=True)
class InvalidRequest(ApiError):
    """At least one field is out of its limits."""

    violations: Sequence[FieldViolation]


@dataclass(slots=True)
class MalformedMessage(ApiError):
    """The bytes of the request are not a message of the expected type."""


@dataclass(slots=True)
class ContextLengthExceeded(ApiError):
    """Prompt and smallest output do not fit the context of the model."""

    prompt_tokens: int
    min_tokens: int
    max_context_tokens: int


@dataclass(slots=True)
class FeatureDisabled(ApiError):
    """The request needs something that this server does not offer."""

    feature: str  # the path of the field that asked for it


@dataclass(slots=True)
class ModelNotFound(ApiError):
    """The request names a model that is not served here."""

    model: str
    served: str


@dataclass(slots=True)
class ClientStalled(ApiError):
    """The client did not take one message of a stream in time."""

    limit_seconds: float


@dataclass(slots=True, frozen=True)
class Fault:
    """What a client is told."""

    code: grpc.StatusCode
    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    violations: Sequence[FieldViolation] = ()
    retry_after_seconds: float | None = None  # None: retrying does not help


def _engine_lost(error: EngineLost) -> Fault:
    # A client that has seen text must start the whole request again; before that a plain
    # retry is invisible to the user, and UNAVAILABLE is the code that clients retry.
    if error.tokens_sent > 0:
        code, retry_after_seconds = grpc.StatusCode.ABORTED, None
    else:
        code, retry_after_seconds = grpc.StatusCode.UNAVAILABLE, 0.0
    return Fault(
        code,
        "ENGINE_LOST",
        "the engine died and the request could not be carried over",
        {"tokens_sent": str(error.tokens_sent)},
        retry_after_seconds=retry_after_seconds,
    )


_DRAINING = Fault(
    grpc.StatusCode.UNAVAILABLE,
    "DRAINING",
    "this replica is draining; retry on another one",
    retry_after_seconds=0.0,
)
_NOT_READY = Fault(
    grpc.StatusCode.UNAVAILABLE,
    "NOT_READY",
    "the engine is starting; retry on another replica",
    retry_after_seconds=0.0,
)

INTERNAL = Fault(grpc.StatusCode.INTERNAL, "INTERNAL", INTERNAL_MESSAGE)

_Describe = Callable[[Any], Fault]

FAULTS: dict[type[Exception], _Describe] = {
    InvalidRequest: lambda error: Fault(
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        "; ".join(str(violation) for violation in error.violations[:SHOWN_VIOLATIONS]),
        violations=error.violations[:SHOWN_VIOLATIONS],
    ),
    MalformedMessage: lambda _: Fault(
        grpc.StatusCode.INVALID_ARGUMENT,
        "MALFORMED_MESSAGE",
        "the request does not parse (invalid wire format or invalid UTF-8)",
    ),
    ContextLengthExceeded: lambda error: Fault(
        grpc.StatusCode.INVALID_ARGUMENT,
        "CONTEXT_LENGTH_EXCEEDED",
        f"the prompt of {error.prompt_tokens} tokens and at least "
        f"{error.min_tokens} output tokens exceed the context of "
        f"{error.max_context_tokens} tokens",
        {
            "prompt_tokens": str(error.prompt_tokens),
            "min_tokens": str(error.min_tokens),
            "max_context_tokens": str(error.max_context_tokens),
        },
    ),
    ExceedsCapacity: lambda error: Fault(
        grpc.StatusCode.FAILED_PRECONDITION,
        "EXCEEDS_CACHE_CAPACITY",
        f"{error.prompt_tokens} tokens need {error.needed_blocks} KV blocks, the pool has "
        f"{error.total_blocks} ({error.limit_tokens} tokens)",
        {
            "prompt_tokens": str(error.prompt_tokens),
            "needed_blocks": str(error.needed_blocks),
            "total_blocks": str(error.total_blocks),
            "limit_tokens": str(error.limit_tokens),
        },
    ),
    QueueFull: lambda error: Fault(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
        f"{error.waiting} requests wait, the limit is {error.limit}",
        {"waiting": str(error.waiting), "limit": str(error.limit)},
        retry_after_seconds=error.retry_after_seconds,
    ),
    DeadlineUnreachable: lambda error: Fault(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "DEADLINE_UNREACHABLE",
        f"the answer would take {error.forecast_seconds:.3g} s at the present load, the deadline "
        f"is in {error.remaining_seconds:.3g} s",
        {
            "forecast_seconds": f"{error.forecast_seconds:.3f}",
            "remaining_seconds": f"{error.remaining_seconds:.3f}",
        },
        retry_after_seconds=error.retry_after_seconds,
    ),
    SlowReader: lambda error: Fault(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "SLOW_READER",
        f"the client did not read for {error.limit_seconds:g} s "
        f"({error.unsent_tokens} tokens unsent)",
        {
            "unsent_tokens": str(error.unsent_tokens),
            "limit_seconds": f"{error.limit_seconds:g}",
        },
    ),
    DeviceExhausted: lambda error: Fault(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "DEVICE_MEMORY_EXHAUSTED",
        f"a step of this request wanted {error.wanted_bytes} bytes, the device had "
        f"{error.free_bytes} free of {error.total_bytes}",
        {
            "wanted_bytes": str(error.wanted_bytes),
            "free_bytes": str(error.free_bytes),
            "total_bytes": str(error.total_bytes),
            "tokens_sent": str(error.tokens_sent),
        },
        retry_after_seconds=error.retry_after_seconds,
    ),
    ClientStalled: lambda error: Fault(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "SLOW_READER",
        f"the client did not read for {error.limit_seconds:g} s",
        {"limit_seconds": f"{error.limit_seconds:g}"},
    ),
    Draining: lambda _: _DRAINING,
    NotReady: lambda _: _NOT_READY,
    EngineLost: _engine_lost,
    # Not ABORTED: the same request would kill the next engine too.
    EngineCrashedByRequest: lambda error: Fault(
        grpc.StatusCode.INTERNAL,
        "ENGINE_CRASHED_BY_REQUEST",
        f"the engine died {error.engine_deaths} times while it computed this request; "
        "do not send it again, report the request id",
        {
            "engine_deaths": str(error.engine_deaths),
            "tokens_sent": str(error.tokens_sent),
        },
    ),
    ModelFailed: lambda _: INTERNAL,
    AbortedByAdmin: lambda error: Fault(
        grpc.StatusCode.CANCELLED,
        "ABORTED_BY_ADMIN",
        "aborted by AbortRequests",
        {"abort_reason": error.reason},
    ),
    MemoryShort: lambda error: Fault(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "MEMORY_SHORT",
        f"{error.wanted_bytes} bytes more are wanted for the KV pool, {error.available_bytes} are "
        f"available, of which {error.headroom_bytes} must stay",
        {
            "wanted_bytes": str(error.wanted_bytes),
            "available_bytes": str(error.available_bytes),
            "headroom_bytes": str(error.headroom_bytes),
            "total_blocks": str(error.total_blocks),
        },
    ),
    FaultsDisabled: lambda _: Fault(
        grpc.StatusCode.FAILED_PRECONDITION,
        "FAULTS_DISABLED",
        "this server takes no faults; it was started without allow_faults",
    ),
    DeadlinePassed: lambda _: Fault(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEADLINE_EXCEEDED",
        "the deadline is over",
    ),
    DuplicateRequestId: lambda error: Fault(
        grpc.StatusCode.ALREADY_EXISTS,
        "REQUEST_ID_IN_USE",
        f"a live request has the id {error.request_id}",
        {"request_id": error.request_id},
    ),
    ModelNotFound: lambda error: Fault(
        grpc.StatusCode.NOT_FOUND,
        "MODEL_NOT_FOUND",
        f"model {_shorten(ascii(error.model), 64)} is not served here, {error.served!r} is",
        {"served": error.served},
    ),
    FeatureDisabled: lambda error: Fault(
        grpc.StatusCode.UNIMPLEMENTED,
        "FEATURE_DISABLED",
        f"{error.feature} is not enabled on this server",
        {"feature": error.feature},
    ),
}


def describe(error: Exception) -> Fault | None:
    """The fault of an expected exception; None for a bug."""
    for kind in type(error).__mro__:
        if kind in FAULTS:
            return FAULTS[kind](error)
    return None


def to_status(fault: Fault, request_id: str) -> status_pb2.Status:
    """The rich status: code, message and details of google.rpc."""
    details: list[message.Message] = [
        error_details_pb2.ErrorInfo(
            reason=fault.reason, domain=ERROR_DOMAIN, metadata=fault.metadata
        )
    ]
    if fault.violations:
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(
                        field=violation.path, description=str(violation)
                    )
                    for violation in fault.violations
                ]
            )
        )
    if fault.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(_milliseconds(fault.retry_after_seconds))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if fault.code is grpc.StatusCode.INTERNAL:
        details.append(error_details_pb2.RequestInfo(request_id=request_id))
    status = status_pb2.Status(code=fault.code.value[0], message=fault.message)
    for detail in details:
        status.details.add().Pack(detail)
    return status


async def abort(context: Context, fault: Fault, request_id: str) -> NoReturn:
    """Ends the call with the fault, its details and its trailers."""
    rich = rpc_status.to_status(to_status(fault, request_id))
    await context.abort(
        rich.code, rich.details, (*rich.trailing_metadata, *trailers(fault, request_id))
    )


def trailers(fault: Fault, request_id: str) -> tuple[tuple[str, str], ...]:
    """Trailing metadata of a failed call beside the packed status."""
    pairs = [(REQUEST_ID_KEY, request_id)]
    # "Elsewhere, now" is no push-back: a client with one replica keeps its own back-off.
    if fault.retry_after_seconds:
        pairs.append((PUSHBACK_KEY, str(_milliseconds(fault.retry_after_seconds))))
    return tuple(pairs)


def _milliseconds(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _shorten(text: str, limit: int) -> str:
    """Trailers are small: no part of an error text may be as long as a client likes."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
