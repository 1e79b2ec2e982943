"""The page of all metrics, written in slices so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from service.telemetry.exposition import Format

# No token is sent meanwhile. After each slice the page waits for all that the event loop has to
# do, and that is what a scrape of a busy server takes: most pages are written in one or two.
_SLICE_SECONDS = 0.002
# Who asks more often gets the same page: it cannot keep the event loop busy by asking.
_FRESH_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Page:
    taken_seconds: float  # monotonic
    body: bytes


class Pages:
    """The newest page of each format. Belongs to one event loop."""

    def __init__(self, write: Callable[[Format], Iterable[str]]) -> None:
        """`write` answers a page in pieces, and does its work as they are taken."""
        self._write = write
        self._pages: dict[Format, _Page] = {}
        self._writing = asyncio.Lock()

    async def get(self, page_format: Format) -> bytes:
        """A page that is at most 0.1 s old."""
        async with self._writing:
            page = self._pages.get(page_format)
            now_seconds = time.monotonic()
            if page is None or now_seconds - page.taken_seconds > _FRESH_SECONDS:
                page = _Page(now_seconds, await _joined(self._write(page_format)))
                self._pages[page_format] = page
            return page.body


async def _joined(pieces: Iterable[str]) -> bytes:
    parts = []
    until_seconds = time.monotonic() + _SLICE_SECONDS
    for piece in pieces:
        parts.append(piece)
        if time.monotonic() > until_seconds:
            await asyncio.sleep(0)
            until_seconds = time.monotonic() + _SLICE_SECONDS
    return "".join(parts).encode()
