"""As much of HTTP as a scrape needs: the head of a request, and how an answer looks. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from http import HTTPStatus

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")


class MalformedRequest(Exception):
    """Not the head of an HTTP/1 request."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What was asked for."""

    method: str
    path: str  # without the query
    accept: str


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What is answered."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def in_words(cls, status: HTTPStatus, text: str = "", **headers: str) -> HttpAnswer:
        """An answer for people."""
        return cls(status, f"{text or status.phrase}\n".encode(), headers=headers)

    def encode(self, *, with_body: bool) -> bytes:
        """As it is sent; the length is told also where the body is left out."""
        headers = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Connection": "close",
            **self.headers,
        }
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return head + self.body if with_body else head


def parse_head(head: bytes) -> HttpRequest:
    """Reads a head that ends with an empty line. Raises MalformedRequest."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise MalformedRequest
    accepts = []
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise MalformedRequest
        if header[1].lower() == b"accept":
            accepts.append(header[2].decode("latin-1"))
    path = match[2].partition(b"?")[0]
    return HttpRequest(match[1].decode(), path.decode(), ",".join(accepts))
