"""Reads the page of metrics of a server over HTTP."""

from __future__ import annotations

import argparse
import http.client
import time
from dataclasses import dataclass

from service.smi.page import Page, PageError

_PATH = "/metrics"
_MOST_BYTES = 16 * 2**20  # some fifty times a page with all tenants
_CHUNK_BYTES = 64 * 1024


class UnreadablePageError(Exception):
    """Why there is no page, in words."""


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where a server tells its metrics."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def metrics_address(text: str) -> MetricsAddress:
    """An argument type: HOST:PORT, with brackets around an IPv6 address."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not bare.isprintable() or " " in bare:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9002")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r}: the port is not in [1, 65535]")
    return MetricsAddress(bare, int(port))


def read_page(address: MetricsAddress, timeout_seconds: float) -> Page:
    """The page as it is now. `timeout_seconds` is the longest silence of the server, and the
    longest time for the body. Raises UnreadablePageError."""
    # Not urllib: it would go through the proxy of the environment.
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_seconds)
    try:
        connection.request("GET", _PATH, headers={"Accept": "text/plain"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise UnreadablePageError(f"it answers {answer.status} {answer.reason}")
        return Page.parse(_body(answer, time.monotonic() + timeout_seconds).decode())
    except TimeoutError as error:
        raise UnreadablePageError(f"no answer within {timeout_seconds:g} s") from error
    except OSError as error:
        raise UnreadablePageError(error.strerror or str(error)) from error
    except http.client.HTTPException as error:
        raise UnreadablePageError("the answer is not HTTP") from error
    except UnicodeDecodeError as error:
        raise UnreadablePageError("the answer is not text") from error
    except PageError as error:
        raise UnreadablePageError(str(error)) from error
    finally:
        connection.close()


def _body(answer: http.client.HTTPResponse, until_seconds: float) -> bytes:
    body = bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise UnreadablePageError(f"the page has more than {_MOST_BYTES} bytes")
        if time.monotonic() > until_seconds:
            raise TimeoutError
    return bytes(body)
