"""The one registry of the server, which takes no metric that is not in the catalogue."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from service.telemetry.catalog import METRICS, Kind, Metric

# When a series was born would be a second series for each; ours are all as old as the server.
disable_created_metrics()  # type: ignore[no-untyped-call]


class UncataloguedError(ValueError):
    """A metric, a kind or a label value that the catalogue does not have."""

    def __init__(self, metric: Metric, what: str) -> None:
        super().__init__(f"{metric.name}: {what}")
        self.metric = metric


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that is looked up when it is asked for."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()  # in the order of `metric.labels`


class Exporter:
    """Makes the instruments of metrics, and collects what they and the readings say."""

    def __init__(self, model: str) -> None:
        """`model`: the label that every series has."""
        self._model = model
        self._registry = CollectorRegistry()
        self._counters: dict[Metric, Counter] = {}
        self._histograms: dict[Metric, Histogram] = {}

    def counter(self, metric: Metric, *labels: str) -> Counter:
        """The counter with these label values. Raises UncataloguedError."""
        check(metric, Kind.COUNTER, labels)
        counter = self._counters.get(metric)
        if counter is None:
            counter = Counter(
                metric.family,
                metric.help,
                (metric.model_label, *metric.label_names),
                unit=metric.unit,
                registry=self._registry,
            )
            self._counters[metric] = counter
            self._give_birth(counter, metric)
        return counter.labels(self._model, *labels)

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        """The histogram with these label values. Raises UncataloguedError."""
        check(metric, Kind.HISTOGRAM, labels)
        histogram = self._histograms.get(metric)
        if histogram is None:
            histogram = Histogram(
                metric.family,
                metric.help,
                (metric.model_label, *metric.label_names),
                unit=metric.unit,
                registry=self._registry,
                buckets=metric.buckets,
            )
            self._histograms[metric] = histogram
            self._give_birth(histogram, metric)
        return histogram.labels(self._model, *labels)

    def add_readings(self, read: Callable[[], Iterable[Reading]]) -> None:
        """Asks `read` for values at each `collect`; those of one metric follow each other."""
        self._registry.register(_Readings(self._model, read))

    def add_alias(self, alias: Metric, metric: Metric) -> None:
        """Tells the instrument of `metric` under another name as well. Raises
        UncataloguedError, KeyError when the metric has no instrument."""
        check(alias, metric.kind, ())
        instrument: Counter | Histogram
        if metric.kind is Kind.COUNTER:
            instrument = self._counters[metric]
        else:
            instrument = self._histograms[metric]
        self._registry.register(_Alias(alias, metric, instrument))

    def collect(self) -> Iterator[Family]:
        """All families, each as it is when it is taken."""
        return iter(self._registry.collect())

    def _give_birth(self, instrument: Counter | Histogram, metric: Metric) -> None:
        """Makes the series of all label values that are known, so that none is born at 1."""
        for values in itertools.product(*(label.values or () for label in metric.labels)):
            instrument.labels(self._model, *values)


def check(metric: Metric, kind: Kind, labels: tuple[str, ...]) -> None:
    """Raises UncataloguedError."""
    if METRICS.get(metric.name) is not metric:
        raise UncataloguedError(metric, "not in the catalogue")
    if metric.kind is not kind:
        raise UncataloguedError(metric, f"is a {metric.kind.value}, not a {kind.value}")
    if len(labels) != len(metric.labels):
        raise UncataloguedError(metric, f"{len(labels)} label values, not {len(metric.labels)}")
    for label, value in zip(metric.labels, labels, strict=True):
        if label.values is not None and value not in label.values:
            raise UncataloguedError(metric, f"{label.name}={value!r} is none of {label.values}")


class _Readings(Collector):
    def __init__(self, model: str, read: Callable[[], Iterable[Reading]]) -> None:
        self._model = model
        self._read = read

    def describe(self) -> Iterable[Family]:
        return ()  # the names depend on what is known when it is asked

    def collect(self) -> Iterator[Family]:
        for metric, readings in itertools.groupby(self._read(), key=lambda r: r.metric):
            names = (metric.model_label, *metric.label_names)
            make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = make(metric.family, metric.help, labels=names, unit=metric.unit)
            for reading in readings:
                check(metric, metric.kind, reading.labels)
                family.add_metric((self._model, *reading.labels), reading.value)
            yield family


class _Alias(Collector):
    def __init__(self, alias: Metric, metric: Metric, instrument: Counter | Histogram) -> None:
        self._alias = alias
        self._metric = metric
        self._instrument = instrument

    def describe(self) -> Iterable[Family]:
        return (Family(self._alias.family, self._alias.help, self._alias.kind.value),)

    def collect(self) -> Iterator[Family]:
        alias, metric = self._alias, self._metric
        for family in self._instrument.collect():
            renamed = Family(alias.family, alias.help, family.type)
            renamed.samples = [
                Sample(
                    alias.family + sample.name.removeprefix(metric.family),
                    {
                        alias.model_label if name == metric.model_label else name: value
                        for name, value in sample.labels.items()
                    },
                    sample.value,
                    exemplar=sample.exemplar,
                )
                for sample in family.samples
            ]
            yield renamed
