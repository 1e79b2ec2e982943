"""Between gRPC and the servicers: parsing, identity of a call, errors, calls in flight.

`add_service` registers a plain object whose methods are named after the RPCs and take
`(request, call)`. Here, in one place for every method:

- bytes that do not parse become INVALID_ARGUMENT instead of gRPC's UNKNOWN;
- the id and the tenant of the call are read and checked;
- exceptions become statuses with details, see `service.api.errors`;
- calls are counted, so that a stopping server can wait for the last one.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import grpc
import structlog
from google.protobuf import message, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from service.api import errors
from service.api.errors import (
    ClientStalled,
    Context,
    FieldViolation,
    InvalidRequest,
    MalformedMessage,
)
from service.api.trace_metadata import new_trace, trace_context
from service.front.trace_context import TraceContext
from service.logs import bind_request

TENANT_KEY = "x-tenant-id"
MAX_REQUEST_ID_BYTES = 128
MAX_TENANT_BYTES = 64

_log = structlog.get_logger(__name__)


class ClientGone(Exception):
    """The call was cancelled, or its connection lost, while the server was writing."""


@dataclass(slots=True)
class Call:
    """One call of one client.

    The tenant is what the caller says it is: this server authenticates nobody, so whoever
    reaches the port may name any tenant.
    """

    context: Context
    request_id: str
    arrival_seconds: float  # time.monotonic()
    tenant: str = ""
    deadline_seconds: float | None = None  # time.monotonic()
    trace: TraceContext | None = None  # None: its client named none
    _on_done: list[Callable[[], None]] = field(default_factory=list)
    _done: bool = False

    @property
    def finished(self) -> bool:
        """Whether the call has ended."""
        return self._done

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once when the call has ended, however it ended; now if it has already.

        The only hook that fires in every ending: a handler that is blocked in a write gets no
        CancelledError when its client goes away.
        """
        if self._done:
            callback()
        else:
            self._on_done.append(callback)

    def finish(self, _: Context | None = None) -> None:
        """The call has ended, or will whatever its client does; only the first call counts."""
        self._done = True
        while self._on_done:
            self._on_done.pop()()

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Sends the headers of the answer, once; raises ClientGone."""
        try:
            await self.context.send_initial_metadata(metadata)
        except grpc.aio.InternalError as error:
            raise ClientGone from error

    async def write(self, answer: message.Message, limit_seconds: float) -> None:
        """Sends one message of a stream.

        Blocks while the flow-control window of the client is full, for at most `limit_seconds`,
        then raises ClientStalled. Raises ClientGone when the call ended meanwhile.
        """
        try:
            async with asyncio.timeout(limit_seconds):
                await self.context.write(answer)
        except TimeoutError as error:
            raise ClientStalled(limit_seconds) from error
        except grpc.aio.InternalError as error:
            raise ClientGone from error


class InFlight:
    """Counts calls whose handlers have not returned.

    `grpc.aio.Server.stop` returns before the handlers of cancelled calls have run to their
    end, so a clean stop needs its own count.
    """

    def __init__(self) -> None:
        self._count = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return self._count

    def enter(self) -> None:
        self._count += 1
        self._empty.clear()

    def leave(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._empty.set()

    async def wait_empty(self) -> None:
        await self._empty.wait()


def add_service(
    server: grpc.aio.Server,
    descriptor: ServiceDescriptor,
    servicer: object,
    in_flight: InFlight,
    trace_ratio: float | None = None,
) -> None:
    """Registers every RPC of `descriptor`; AttributeError when `servicer` lacks one.

    `trace_ratio`: of the calls whose client names no trace; None: these have none.
    """
    handlers = {
        method.name: _handler(method, getattr(servicer, method.name), in_flight, trace_ratio)
        for method in descriptor.methods
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(descriptor.full_name, handlers),)
    )


def _handler(
    method: MethodDescriptor,
    behaviour: Callable[[Any, Call], Awaitable[Any]],
    in_flight: InFlight,
    trace_ratio: float | None,
) -> grpc.RpcMethodHandler[Any, Any]:
    request_type = message_factory.GetMessageClass(method.input_type)
    response_type = message_factory.GetMessageClass(method.output_type)

    def deserialize(data: bytes) -> message.Message | MalformedMessage:
        try:
            return request_type.FromString(data)
        except message.DecodeError:
            return MalformedMessage()  # raised where it can be answered

    async def handle(request: message.Message | MalformedMessage, context: Context) -> Any:
        in_flight.enter()
        try:
            return await _serve(method, behaviour, request, context, trace_ratio)
        finally:
            in_flight.leave()

    make = (
        grpc.unary_stream_rpc_method_handler
        if method.server_streaming
        else grpc.unary_unary_rpc_method_handler
    )
    return make(
        handle,
        request_deserializer=deserialize,
        response_serializer=response_type.SerializeToString,
    )


async def _serve(
    method: MethodDescriptor,
    behaviour: Callable[[Any, Call], Awaitable[Any]],
    request: message.Message | MalformedMessage,
    context: Context,
    trace_ratio: float | None,
) -> Any:
    """Runs one call and turns its exceptions into a status.

    CancelledError passes through: gRPC raises it when the client or the deadline ended the call.
    """
    call = Call(context, request_id=uuid.uuid4().hex, arrival_seconds=time.monotonic())
    context.add_done_callback(call.finish)  # type: ignore[arg-type]  # grpc-stubs wants a class
    try:
        if isinstance(request, MalformedMessage):
            raise request
        metadata = tuple(context.invocation_metadata() or ())
        call.trace = trace_context(metadata)
        if call.trace is None and trace_ratio is not None:
            call.trace = new_trace(trace_ratio)
        _identify(call, request, dict(metadata))
        bind_request(call.request_id, call.tenant, call.trace.ids if call.trace else {})
        return await behaviour(request, call)
    except ClientGone:
        return None  # there is nobody to answer
    except Exception as error:  # noqa: BLE001  # logged; the client learns nothing of it
        fault = errors.describe(error)
        if fault is None:
            _log.exception("call failed", method=method.full_name, request_id=call.request_id)
            fault = errors.INTERNAL
        # Sending the status waits for a client that does not read; resources do not.
        call.finish()
        await errors.abort(context, fault, call.request_id)
    finally:
        # gRPC's own notice of the end may come after the handler has left and the engine stopped.
        call.finish()


def _identify(call: Call, request: message.Message, metadata: dict[str, str | bytes]) -> None:
    """Reads id, tenant and deadline; raises InvalidRequest.

    The id in the message wins over the `x-request-id` metadata; the server makes one when both
    are empty.
    """
    violations = []
    wanted_id = getattr(request, "request_id", "")
    path = "request_id" if wanted_id else f"metadata.{errors.REQUEST_ID_KEY}"
    wanted_id = wanted_id or metadata.get(errors.REQUEST_ID_KEY, "")
    if not is_identifier(wanted_id, MAX_REQUEST_ID_BYTES):
        violations.append(
            FieldViolation(
                path, wanted_id, f"must be at most {MAX_REQUEST_ID_BYTES} bytes of printable ASCII"
            )
        )
    elif wanted_id:
        call.request_id = wanted_id
    tenant = metadata.get(TENANT_KEY, "")
    if not is_identifier(tenant, MAX_TENANT_BYTES):
        violations.append(
            FieldViolation(
                f"metadata.{TENANT_KEY}",
                tenant,
                f"must be at most {MAX_TENANT_BYTES} bytes of printable ASCII",
            )
        )
    else:
        call.tenant = tenant
    if violations:
        raise InvalidRequest(violations)
    remaining_seconds = call.context.time_remaining()
    if remaining_seconds is not None:
        call.deadline_seconds = call.arrival_seconds + remaining_seconds


def is_identifier(value: object, max_bytes: int) -> TypeGuard[str]:
    """Printable ASCII (space included) of at most `max_bytes`; may be empty."""
    return (
        isinstance(value, str)
        and len(value) <= max_bytes
        and value.isascii()
        and value.isprintable()
    )
