"""The collector of the settings."""

from __future__ import annotations

import socket
import time
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource

from service.telemetry.tracing.export import SpanQueue
from service.telemetry.tracing.otel import SpanMaker

_EXPORT_SECONDS = 5.0  # for one batch, its retries included


def span_queue(endpoint: str) -> SpanQueue:
    """A queue before the collector at `endpoint`, http:// or https://.

    Headers, certificates and further resource attributes come from OpenTelemetry's own
    environment variables.
    """
    resource = Resource.create(
        {
            "service.name": "plimsoll",
            "service.version": version("plimsoll"),
            "service.instance.id": socket.gethostname(),
        }
    )
    exporter = OTLPSpanExporter(
        endpoint, insecure=endpoint.startswith("http://"), timeout=_EXPORT_SECONDS
    )
    maker = SpanMaker(resource, time.time() - time.monotonic())
    return SpanQueue(exporter, maker.spans)
