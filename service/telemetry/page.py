"""The page of all metrics, written in slices so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

# Writing takes 10 to 20 us a line, and no token is sent meanwhile.
_SLICE_SECONDS = 0.001
# Who asks more often gets the same page: it cannot keep the event loop busy by asking.
_FRESH_SECONDS = 0.1
_END = b"# EOF\n"


class Format(enum.Enum):
    """Of a page, by its media type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def preferred(accept: str) -> Format:
    """What a client wants that sends this Accept header; text when it says nothing of ours."""
    for item in accept.split(","):
        media_type, *parameters = (part.strip().lower() for part in item.split(";"))
        if media_type == "application/openmetrics-text" and "q=0" not in parameters:
            return Format.OPENMETRICS
    return Format.TEXT


@dataclass(frozen=True, slots=True)
class _Page:
    taken_seconds: float  # monotonic
    body: bytes


class Pages:
    """The newest page of each format. Belongs to one event loop."""

    def __init__(self, collect: Callable[[], Iterable[Family]]) -> None:
        """`collect` answers all metrics, and does its work as they are taken."""
        self._collect = collect
        self._pages: dict[Format, _Page] = {}
        self._writing = asyncio.Lock()

    async def get(self, page_format: Format) -> bytes:
        """A page that is at most 0.1 s old."""
        async with self._writing:
            page = self._pages.get(page_format)
            now_seconds = time.monotonic()
            if page is None or now_seconds - page.taken_seconds > _FRESH_SECONDS:
                page = _Page(now_seconds, await _write(self._collect(), page_format))
                self._pages[page_format] = page
            return page.body


async def _write(families: Iterable[Family], page_format: Format) -> bytes:
    parts = []
    until_seconds = time.monotonic() + _SLICE_SECONDS
    for family in families:
        if page_format is Format.OPENMETRICS:
            parts.append(_openmetrics(family).removesuffix(_END))
        else:
            parts.append(exposition.generate_latest(_One(family)))
        if time.monotonic() > until_seconds:
            await asyncio.sleep(0)
            until_seconds = time.monotonic() + _SLICE_SECONDS
    if page_format is Format.OPENMETRICS:
        parts.append(_END)
    return b"".join(parts)


def _openmetrics(family: Family) -> bytes:
    # By default the client writes the colon in the name of a sample, and nowhere else, as an
    # underscore. No name in the catalogue has anything that needs escaping.
    page: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
        _One(family), escaping=openmetrics.ALLOWUTF8
    )
    return page


class _One(Collector):
    """A registry with one family, which is all that a slice writes."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        return (self._family,)
