"""The head of a request, and what a client may prefer."""

from __future__ import annotations

import contextlib
from http import HTTPStatus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.telemetry.exposition import Format, preferred
from service.telemetry.http_request import (
    HttpAnswer,
    HttpRequest,
    MalformedRequest,
    parse_head,
)


def test_a_scrape_of_prometheus() -> None:
    head = (
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: here:9002\r\nUser-Agent: Prometheus/2.42.0\r\n"
        b"Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\naccept: */*\r\n"
        b"X-Empty:\r\n\r\n"
    )
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5,*/*"
    assert parse_head(head) == HttpRequest("GET", "/metrics", accept)


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"GET /metrics HTTP/1.1 \r\n\r\n",
        b"GET  /metrics HTTP/1.1\r\n\r\n",
        b"get /metrics HTTP/1.1\r\n\r\n",
        b"GET metrics HTTP/1.1\r\n\r\n",
        b"GET http://here/metrics HTTP/1.1\r\n\r\n",
        b"GET /me\x00trics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHo st: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n Accept: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: x\rEvil: y\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: x\x00\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
    ],
)
def test_what_is_no_head_of_http_1(head: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_head(head)


@given(st.binary(max_size=200))
@example(b"GET / HTTP/1.1\r\n:\r\n\r\n")
def test_any_bytes_are_read_or_refused(junk: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        assert parse_head(junk + b"\r\n\r\n").path.startswith("/")


def test_an_answer_without_its_body_tells_its_length() -> None:
    answer = HttpAnswer.in_words(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
    whole, head = answer.encode(with_body=True), answer.encode(with_body=False)
    assert whole == head + b"Method Not Allowed\n"
    assert head.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"\r\nContent-Length: 19\r\n" in head
    assert b"\r\nAllow: GET, HEAD\r\n" in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("accept", "page_format"),
    [
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Format.TEXT),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", Format.OPENMETRICS),
        # Prometheus 2.42
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
            "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format.OPENMETRICS,
        ),
        ("text/plain, Application/OpenMetrics-Text", Format.OPENMETRICS),
        ("application/openmetrics-text;q=0, text/plain", Format.TEXT),
        ("application/openmetrics-text; q=0.000, text/plain", Format.TEXT),
        ("application/openmetrics-text;q=0.01", Format.OPENMETRICS),
        ("application/openmetrics-text; q=0.9", Format.OPENMETRICS),
        ("application/openmetrics-texture", Format.TEXT),
        (";;;,,,=", Format.TEXT),
    ],
)
def test_what_a_client_prefers(accept: str, page_format: Format) -> None:
    assert preferred(accept) is page_format
