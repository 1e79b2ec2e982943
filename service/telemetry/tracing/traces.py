"""Traces of a front, where the settings ask for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from service.config import ServeSettings
from service.front.front import Front
from service.front.state import served_name
from service.telemetry.tracing.figures import SpanFigures
from service.telemetry.tracing.observer import RequestTraces

if TYPE_CHECKING:
    from service.telemetry.tracing.export import SpanQueue

_CLOSE_SECONDS = 1.5  # that the end of a server waits for its last spans


class Traces:
    """Observes a front and sends the traces of its requests. Without an endpoint it does not."""

    def __init__(self, front: Front, settings: ServeSettings) -> None:
        """The front is not started yet."""
        self._queue: SpanQueue | None = None
        if settings.otlp_endpoint is not None:
            # Slow to import, and not there for those who do not trace.
            from service.telemetry.tracing.collector import span_queue

            self._queue = span_queue(settings.otlp_endpoint)
            front.observe(RequestTraces(served_name(settings), self._queue.put))

    @property
    def figures(self) -> SpanFigures:
        """Since the start."""
        return SpanFigures() if self._queue is None else self._queue.figures

    def start(self) -> None:
        """Begins to send."""
        if self._queue is not None:
            self._queue.start()

    async def stop(self) -> None:
        """Sends what is left, as far as the collector takes it soon."""
        if self._queue is not None:
            await asyncio.to_thread(self._queue.close, _CLOSE_SECONDS)
