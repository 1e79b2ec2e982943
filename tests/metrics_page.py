"""Reads pages of metrics with the parsers of the Prometheus client."""

from __future__ import annotations

import asyncio
import math
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import parser
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.samples import Sample

from service.telemetry.catalog import Metric
from service.telemetry.exporter import Exporter
from service.telemetry.exposition import Format

TEXT = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass
class MetricsPage:
    """All families of a page."""

    families: list[Family]

    @classmethod
    def of(cls, body: bytes, *, openmetrics: bool = False) -> MetricsPage:
        parse = openmetrics_parser if openmetrics else parser
        return cls(list(parse.text_string_to_metric_families(body.decode())))

    @property
    def samples(self) -> Iterator[Sample]:
        return (sample for family in self.families for sample in family.samples)

    @property
    def series(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in self.samples}

    def value(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        """Of the only series with these labels, besides the model."""
        (value,) = self.values(metric, suffix, **labels)
        return value

    def values(self, metric: Metric, suffix: str = "", **labels: str) -> list[float]:
        """Of all series that have these labels."""
        return [
            sample.value
            for sample in self.samples
            if sample.name == metric.name + suffix and labels.items() <= sample.labels.items()
        ]

    def total(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        return math.fsum(self.values(metric, suffix, **labels))


def page_of(exporter: Exporter, page_format: Format = Format.TEXT) -> MetricsPage:
    body = "".join(exporter.write(page_format)).encode()
    return MetricsPage.of(body, openmetrics=page_format is Format.OPENMETRICS)


async def scrape(address: str, accept: str = TEXT) -> MetricsPage:
    """The page of a server at `host:port`."""

    def fetch() -> bytes:
        request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=30) as answer:
            body: bytes = answer.read()
        return body

    body = await asyncio.to_thread(fetch)
    return MetricsPage.of(body, openmetrics=accept == OPENMETRICS)
