"""All metrics of a server, and the port where they can be had."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from importlib.metadata import version

from service.config import ServeSettings
from service.config.tenants import parse_tenant_shares
from service.front.front import Front
from service.front.state import served_name
from service.repeats import RepeatFilter
from service.telemetry.catalog import server, vllm
from service.telemetry.exporter import Exporter, Reading
from service.telemetry.exposition import preferred
from service.telemetry.gpu_readings import gpu_readings
from service.telemetry.gpu_sampler import GpuSampler
from service.telemetry.http_request import HttpAnswer, HttpRequest
from service.telemetry.http_server import HttpServer
from service.telemetry.loop_lag import LoopLag
from service.telemetry.page import Pages
from service.telemetry.readings import Moment, readings, vllm_readings
from service.telemetry.request_metrics import RequestMetrics
from service.telemetry.tenants import TenantNames
from service.telemetry.tracing.figures import SpanFigures
from service.telemetry.vllm_requests import VllmRequestMetrics

PATH = "/metrics"


class Metrics:
    """Observes a front and answers scrapes. Belongs to the event loop of the front."""

    def __init__(
        self,
        front: Front,
        settings: ServeSettings,
        gpus: GpuSampler | None = None,
        spans: Callable[[], SpanFigures] = SpanFigures,
    ) -> None:
        """The front is not started yet. `gpus`: those that CUDA may use, unless given. `spans`
        tells what became of those of traces."""
        self._spans = spans
        self._front = front
        self._settings = settings
        self._start_seconds = time.time()
        self._suppressed_before = RepeatFilter.left_out
        self._version = version("plimsoll")
        exporter = Exporter(served_name(settings))
        known = parse_tenant_shares(settings.engine.tenant_shares or "")
        self._tenants = TenantNames(settings.metrics_tenants, known)
        front.observe(RequestMetrics(exporter, self._tenants))
        self._lag = LoopLag(exporter)
        self._gpus = gpus or GpuSampler(
            settings.gpu_sample_seconds,
            self._process_ids,
            os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
        exporter.add_readings(self._readings)
        if settings.vllm_metrics:
            front.observe(VllmRequestMetrics(exporter))
            for alias, metric in vllm.ALIASES.items():
                exporter.add_alias(alias, metric)
        self._pages = Pages(exporter.write)
        self._server = HttpServer(self.respond)
        self._lag_task: asyncio.Task[None] | None = None
        self._host = settings.host if settings.metrics_host is None else settings.metrics_host
        self._port = settings.metrics_port

    @property
    def address(self) -> str:
        """Where they can be had, as `host:port`; with the real port from `start` on."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Listens. Raises OSError."""
        self._port = await self._server.start(self._host, self._port)
        self._lag_task = asyncio.create_task(self._lag.run())
        if self._settings.gpu_sample_seconds > 0:
            self._gpus.start()

    async def stop(self) -> None:
        """Closes the port. Does not wait for a driver that hangs."""
        self._gpus.stop()
        if self._lag_task is not None:
            self._lag_task.cancel()
        await self._server.stop()

    async def respond(self, request: HttpRequest) -> HttpAnswer:
        """The page, where it was asked for."""
        if request.path != PATH:
            return HttpAnswer.in_words(HTTPStatus.NOT_FOUND, f"Metrics are at {PATH}.")
        page_format = preferred(request.accept)
        return HttpAnswer(
            HTTPStatus.OK, await self._pages.get(page_format), content_type=page_format.value
        )

    def _readings(self) -> Iterator[Reading]:
        stats, model = self._front.stats(), self._front.model
        yield Reading(server.INFO, 1, (self._version,))
        yield Reading(server.STARTED, self._start_seconds)
        suppressed = RepeatFilter.left_out - self._suppressed_before
        yield Reading(server.LOG_SUPPRESSED, suppressed)
        spans = self._spans()
        yield Reading(server.SPANS, spans.exported, ("exported",))
        yield Reading(server.SPANS, spans.dropped, ("dropped",))
        yield Reading(server.SPANS, spans.failed, ("failed",))
        now = Moment(time.time(), time.monotonic())
        yield from readings(stats, model, self._tenants, now)
        yield from gpu_readings(self._gpus.view, now, self._settings.gpu_sample_seconds)
        if self._settings.vllm_metrics:
            yield from vllm_readings(stats, model)

    def _process_ids(self) -> tuple[int, ...]:
        """Of this server. Called on another thread."""
        engine = self._front.engine_process_id
        return (os.getpid(),) if engine is None else (os.getpid(), engine)
