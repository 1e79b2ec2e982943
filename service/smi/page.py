"""One page of metrics, to be asked by the metrics of the catalogue.

It may be the page of an older or a newer server: what it lacks is None or empty, what it has
beyond is not looked at.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from service.smi.buckets import Buckets
from service.telemetry.catalog import METRICS, Metric, server

# Nothing that a server counts is larger; beyond it sums overflow and nothing fits a terminal.
_MOST = 2.0**63


class PageError(ValueError):
    """The text is no page of metrics, or not one of ours."""


@dataclass(frozen=True, slots=True)
class Page:
    """Samples by name, those left out that tell no amount: NaN, infinity, more than there can be.

    Labels are printable: what a server sends does not steer the terminal.
    """

    samples: Mapping[str, tuple[Sample, ...]]

    @classmethod
    def parse(cls, text: str) -> Page:
        """Reads the text format of Prometheus. Raises PageError."""
        samples = defaultdict(list)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if abs(sample.value) <= _MOST:  # which no NaN is
                        samples[sample.name].append(_printable(sample))
        # The parser takes an empty label for one of a letter at least.
        except (ValueError, IndexError) as error:
            raise PageError("the answer is not a page of metrics") from error
        if not samples.keys() & METRICS.keys():
            raise PageError("the metrics are not those of a Plimsoll server")
        return cls({name: tuple(found) for name, found in samples.items()})

    def value(self, metric: Metric, **labels: str) -> float | None:
        """Sum over the series with these labels; None: there are none."""
        values = [
            sample.value
            for sample in self.samples.get(metric.name, ())
            if labels.items() <= sample.labels.items()
        ]
        return math.fsum(values) if values else None

    def by_label(self, metric: Metric, label: str) -> dict[str, float]:
        """Sums by the values of a label: those that the catalogue knows in its order, then the
        others as they are on the page."""
        known = next((each.values for each in metric.labels if each.name == label), None) or ()
        sums: dict[str, float] = {}
        for sample in self.samples.get(metric.name, ()):
            if label in sample.labels:
                value = sample.labels[label]
                sums[value] = sums.get(value, 0.0) + sample.value
        first = {value: sums[value] for value in known if value in sums}
        return first | sums

    def info(self, metric: Metric) -> Mapping[str, str]:
        """The labels of a metric that says all it says with them."""
        samples = self.samples.get(metric.name, ())
        return samples[0].labels if samples else {}

    def buckets(self, metric: Metric) -> Buckets | None:
        """A histogram, over all its series; None: it is not there."""
        counts: dict[float, float] = {}
        for sample in self.samples.get(f"{metric.name}_bucket", ()):
            bound = _bound(sample)
            if bound is not None:
                counts[bound] = counts.get(bound, 0.0) + sample.value
        if math.inf not in counts:
            return None
        bounds = tuple(sorted(counts))
        return Buckets(bounds, tuple(counts[bound] for bound in bounds))

    @property
    def start_seconds(self) -> float | None:
        """When the server started, in Unix time on its own clock: another one is another server,
        whose counters began at 0."""
        return self.value(server.STARTED)


def _printable(sample: Sample) -> Sample:
    if all(value.isprintable() for value in sample.labels.values()):
        return sample
    labels = {
        name: "".join(each if each.isprintable() else "?" for each in value)
        for name, value in sample.labels.items()
    }
    return sample._replace(labels=labels)


def _bound(sample: Sample) -> float | None:
    """Of a bucket; None: it has none, or one that is not a number."""
    try:
        bound = float(sample.labels["le"])
    except (KeyError, ValueError):
        return None
    return None if math.isnan(bound) else bound
