"""How late the event loop of the server is."""

from __future__ import annotations

import asyncio
import time

from service.telemetry.catalog import server
from service.telemetry.exporter import Exporter

_INTERVAL_SECONDS = 0.5


class LoopLag:
    """A timer that looks how late it is: by so much every token is late."""

    def __init__(self, exporter: Exporter) -> None:
        self._lag = exporter.histogram(server.LOOP_LAG)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            due_seconds = time.monotonic() + _INTERVAL_SECONDS
            await asyncio.sleep(_INTERVAL_SECONDS)
            self._lag.observe(max(0.0, time.monotonic() - due_seconds))
