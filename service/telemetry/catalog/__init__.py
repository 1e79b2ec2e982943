"""Every metric of the server as plain data, by the name to query.

It imports nothing but the standard library: dashboards and alerts read it, and a metric that is
not in it cannot be exported. Names are an API: what is here once keeps its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from service.telemetry.catalog import admin, cache, gpu, memory, requests, server, tenants, vllm
from service.telemetry.catalog.metric import MODEL_LABEL, Kind, Label, Metric

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for module in (requests, tenants, cache, memory, gpu, server, admin, vllm)
        for metric in module.METRICS
    }
)

__all__ = [
    "METRICS",
    "MODEL_LABEL",
    "Kind",
    "Label",
    "Metric",
    "admin",
    "cache",
    "gpu",
    "memory",
    "requests",
    "server",
    "tenants",
    "vllm",
]
