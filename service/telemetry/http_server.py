"""A small HTTP server on the event loop, for one who scrapes and for many who should not be there.

The servers of prometheus_client need a thread for each connection or a web framework, and none
bounds what a client may send or how long it may take. One request a connection is all that a
scrape every few seconds needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog

from service.telemetry.http_request import HttpAnswer, HttpRequest, MalformedRequest, parse_head

MAX_HEAD_BYTES = 8 * 1024
MAX_CONNECTIONS = 16  # that are served; as many more are told that the server is busy
LIMIT_SECONDS = 5.0  # of a connection, whatever is in it

_BUSY = HttpAnswer.in_words(HTTPStatus.SERVICE_UNAVAILABLE).encode(with_body=True)

_log = structlog.get_logger(__name__)


class HttpServer:
    """Answers GET and HEAD. Belongs to one event loop."""

    def __init__(
        self,
        respond: Callable[[HttpRequest], Awaitable[HttpAnswer]],
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._respond = respond
        self._limit_seconds = limit_seconds
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, host: str, port: int) -> int:
        """Listens, and answers the port; 0 takes a free one. Raises OSError."""
        listener = _listen(host, port)
        self._server = await asyncio.start_server(
            self._connected, sock=listener, limit=MAX_HEAD_BYTES
        )
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Closes all connections, whatever is in them, and the port."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_busy = len(self._writers) >= MAX_CONNECTIONS
        if len(self._writers) >= 2 * MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._writers.add(writer)
        # So that `drain` waits for the last byte: what a client does not read is not kept for it.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            # Who hangs up gets nothing, and who takes too long is hung up on.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(self._limit_seconds):
                    writer.write(_BUSY if is_busy else await self._exchange(reader))
                    await writer.drain()
                    writer.write_eof()
                    # To close before all was read would reset the connection, and the client
                    # might never see the answer.
                    while await reader.read(MAX_HEAD_BYTES):
                        pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = parse_head(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return HttpAnswer.in_words(status).encode(with_body=True)
        except MalformedRequest:
            return HttpAnswer.in_words(HTTPStatus.BAD_REQUEST).encode(with_body=True)
        answer = await self._answer(request)
        return answer.encode(with_body=request.method != "HEAD")

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        if request.method not in ("GET", "HEAD"):
            return HttpAnswer.in_words(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
        try:
            return await self._respond(request)
        except Exception:  # noqa: BLE001  # it costs a scrape, and nothing else
            _log.exception("no answer", path=request.path)
            return HttpAnswer.in_words(HTTPStatus.INTERNAL_SERVER_ERROR)


def _listen(host: str, port: int) -> socket.socket:
    """`host` as gRPC takes it, too: in brackets, and [::] for IPv4 as well."""
    address = host.removeprefix("[").removesuffix("]")
    is_v6 = ":" in address
    return socket.create_server(
        (address, port),
        family=socket.AF_INET6 if is_v6 else socket.AF_INET,
        dualstack_ipv6=address == "::" and socket.has_dualstack_ipv6(),
    )
