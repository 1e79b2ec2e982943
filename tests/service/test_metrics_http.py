"""The port of the metrics under clients that are no scrapers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from service.telemetry.http_request import HttpAnswer, HttpRequest
from service.telemetry.http_server import MAX_CONNECTIONS, MAX_HEAD_BYTES, HttpServer

SHORT_SECONDS = 0.5  # limit of an exchange that is to reach it
LONG_SECONDS = 250.0  # of one that is not
HOST = "127.0.0.2"  # nobody else listens here, so a port that is free again stays free
GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
BIG = b"x" * (16 * 1024 * 1024)  # more than any buffer of the system takes


class Site:
    """Answers with what was asked for."""

    def __init__(self) -> None:
        self.asked: list[HttpRequest] = []

    async def respond(self, request: HttpRequest) -> HttpAnswer:
        self.asked.append(request)
        if request.path == "/broken":
            raise RuntimeError("no figures")
        return HttpAnswer(HTTPStatus.OK, BIG if request.path == "/big" else b"fine\n")


class Port:
    def __init__(self, site: Site, server: HttpServer, port: int) -> None:
        self.site = site
        self.server = server
        self.number = port

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.number)

    async def exchange(self, *parts: bytes) -> bytes:
        """All that is answered until the server hangs up."""
        reader, writer = await self.open()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await asyncio.wait_for(reader.read(), 120)
        finally:
            writer.close()

    async def status(self, *parts: bytes) -> int:
        """0 when there was no answer."""
        answer = await self.exchange(*parts)
        return int(answer.split(b" ", 2)[1]) if answer else 0

    async def until_served(self) -> None:
        status = 0
        while status != 200:
            await asyncio.sleep(0.01)
            with contextlib.suppress(ConnectionResetError):
                status = await self.status(GET)


@contextlib.asynccontextmanager
async def running(limit_seconds: float = LONG_SECONDS) -> AsyncIterator[Port]:
    site = Site()
    server = HttpServer(site.respond, limit_seconds)
    port = await server.start(HOST, 0)
    try:
        yield Port(site, server, port)
    finally:
        await asyncio.wait_for(server.stop(), 120)


async def test_a_scrape() -> None:
    async with running() as port:
        answer = await port.exchange(GET)
        head, body = answer.split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Length: 5" in head
        assert b"Connection: close" in head
        assert body == b"fine\n"


async def test_a_request_that_comes_byte_by_byte() -> None:
    async with running() as port:
        assert await port.status(*(bytes([byte]) for byte in GET)) == 200


async def test_a_head_only() -> None:
    async with running() as port:
        answer = await port.exchange(GET.replace(b"GET", b"HEAD"))
        assert answer.endswith(b"Content-Length: 5\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT"])
async def test_other_methods_are_not_allowed(method: bytes) -> None:
    async with running() as port:
        answer = await port.exchange(GET.replace(b"GET", method))
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"\r\nAllow: GET, HEAD\r\n" in answer
        assert port.site.asked == []


@pytest.mark.parametrize(
    "junk",
    [
        b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # what gRPC says first
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # what TLS says first
        b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
    ],
)
async def test_what_is_not_http_1_is_a_bad_request(junk: bytes) -> None:
    async with running() as port:
        assert await port.status(junk) == 400
        assert port.site.asked == []
        assert await port.status(GET) == 200


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["endless", "ended"])
async def test_a_head_that_is_too_large_is_refused(end: bytes) -> None:
    async with running() as port:
        head = GET.removesuffix(b"\r\n") + b"X: " + b"y" * 3 * MAX_HEAD_BYTES + end
        assert await port.status(head) == 431
        assert port.site.asked == []


async def test_a_second_request_of_a_connection_is_not_answered() -> None:
    async with running() as port:
        assert (await port.exchange(GET * 3)).count(b"HTTP/1.1") == 1
        assert len(port.site.asked) == 1


async def test_an_answer_that_fails_is_an_error_and_the_next_is_not() -> None:
    async with running() as port:
        assert await port.status(b"GET /broken HTTP/1.1\r\n\r\n") == 500
        assert await port.status(GET) == 200


async def test_who_says_nothing_is_hung_up_on() -> None:
    async with running(SHORT_SECONDS) as port:
        assert await port.exchange(GET[:20]) == b""
        assert await port.exchange() == b""


async def test_who_does_not_read_is_hung_up_on() -> None:
    async with running(SHORT_SECONDS) as port:
        reader, writer = await port.open()
        writer.write(b"GET /big HTTP/1.1\r\n\r\n")
        while not port.site.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(2 * SHORT_SECONDS)  # as long as it takes to be given up
        with contextlib.suppress(ConnectionResetError):
            assert len(await reader.read()) < len(BIG)
        writer.close()


async def test_a_large_answer_comes_whole() -> None:
    async with running() as port:
        answer = await port.exchange(b"GET /big HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"\r\n\r\n" + BIG)


async def test_a_large_answer_comes_whole_to_who_has_said_all() -> None:
    async with running() as port:
        reader, writer = await port.open()
        writer.write(b"GET /big HTTP/1.1\r\n\r\n")
        writer.write_eof()
        assert (await reader.read()).endswith(b"\r\n\r\n" + BIG)
        writer.close()


async def test_too_many_connections_are_turned_away_until_others_end() -> None:
    async with running() as port:
        idle = [await port.open() for _ in range(MAX_CONNECTIONS)]
        assert await port.status(GET) == 503
        for _reader, writer in idle:
            writer.close()
        await port.until_served()


async def test_far_too_many_connections_are_hung_up_on() -> None:
    async with running() as port:
        idle = [await port.open() for _ in range(3 * MAX_CONNECTIONS)]
        readers = [reader for reader, _writer in idle]
        answers = await asyncio.gather(*(reader.read() for reader in readers[MAX_CONNECTIONS:]))
        turned_away, hung_up_on = answers[:MAX_CONNECTIONS], answers[MAX_CONNECTIONS:]
        assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in turned_away)
        assert hung_up_on == [b""] * MAX_CONNECTIONS
        assert not any(reader.at_eof() for reader in readers[:MAX_CONNECTIONS])
        for _reader, writer in idle:
            writer.close()


async def test_clients_that_hang_up_leave_nothing_behind() -> None:
    async with running() as port:
        for _ in range(3 * MAX_CONNECTIONS):
            _reader, writer = await port.open()
            writer.write(b"GET /big HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                await writer.drain()
            writer.transport.abort()
        await port.until_served()


async def test_a_stop_hangs_up_on_everybody() -> None:
    async with running() as port:
        reader, writer = await port.open()
        writer.write(GET[:10])
        await asyncio.sleep(0.05)
        await port.server.stop()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 120) == b""
        writer.close()
        with pytest.raises(OSError):
            await port.open()


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with running() as port:
        with pytest.raises(OSError):
            await HttpServer(port.site.respond).start(HOST, port.number)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
async def test_all_addresses_are_those_of_both_protocols() -> None:
    server = HttpServer(Site().respond)
    port = await server.start("[::]", 0)
    for host in ("127.0.0.1", "::1"):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(GET)
        assert (await reader.read()).endswith(b"fine\n")
        writer.close()
    await server.stop()
