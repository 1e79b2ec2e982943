"""The one registry of the server, which takes no metric that is not in the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Counter, Histogram, disable_created_metrics

from service.telemetry.catalog import Kind, Metric
from service.telemetry.exposition import END, Format
from service.telemetry.sections import (
    Instrument,
    InstrumentSection,
    Reading,
    ReadingsSection,
    Section,
    UncataloguedError,
    check,
)
from service.telemetry.series import CounterSeries, HistogramSeries

__all__ = ["Exporter", "Reading", "UncataloguedError"]

# When a series was born would be a second series for each; ours are all as old as the server.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Exporter:
    """Makes the instruments of metrics, and writes what they and the readings say."""

    def __init__(self, model: str) -> None:
        """`model`: the label that every series has."""
        self._model = model
        self._counters: dict[str, Instrument[CounterSeries]] = {}  # by the name of the metric
        self._histograms: dict[str, Instrument[HistogramSeries]] = {}
        self._sections: list[Section] = []  # as they follow each other on the page

    def counter(self, metric: Metric, *labels: str) -> CounterSeries:
        """The counter with these label values. Raises UncataloguedError."""
        check(metric, Kind.COUNTER, labels)
        instrument = self._counters.get(metric.name)
        if instrument is None:
            instrument = self._counters[metric.name] = self._new_counter(metric)
            self._sections.append(InstrumentSection(metric, self._model, instrument))
        return instrument.series(labels)

    def histogram(self, metric: Metric, *labels: str) -> HistogramSeries:
        """The histogram with these label values. Raises UncataloguedError."""
        check(metric, Kind.HISTOGRAM, labels)
        instrument = self._histograms.get(metric.name)
        if instrument is None:
            instrument = self._histograms[metric.name] = self._new_histogram(metric)
            self._sections.append(InstrumentSection(metric, self._model, instrument))
        return instrument.series(labels)

    def add_readings(self, read: Callable[[], Iterable[Reading]]) -> None:
        """Asks `read` for values for each page; those of one metric follow each other."""
        self._sections.append(ReadingsSection(self._model, read))

    def add_alias(self, alias: Metric, metric: Metric) -> None:
        """Tells the instrument of `metric` under another name as well. Raises
        UncataloguedError, KeyError when the metric has no instrument."""
        check(alias, metric.kind, ())
        section: Section
        if metric.kind is Kind.COUNTER:
            section = InstrumentSection(alias, self._model, self._counters[metric.name])
        else:
            section = InstrumentSection(alias, self._model, self._histograms[metric.name])
        self._sections.append(section)

    def write(self, page_format: Format) -> Iterator[str]:
        """A page in pieces of a few lines, each as things are when it is taken."""
        for section in self._sections:
            yield from section.write(page_format)
        yield END[page_format]

    def _new_counter(self, metric: Metric) -> Instrument[CounterSeries]:
        names = (metric.model_label, *metric.label_names)
        parent = Counter(metric.family, metric.help, names, registry=None)
        return Instrument(metric, lambda values: CounterSeries(parent.labels(self._model, *values)))

    def _new_histogram(self, metric: Metric) -> Instrument[HistogramSeries]:
        names = (metric.model_label, *metric.label_names)
        parent = Histogram(metric.family, metric.help, names, registry=None, buckets=metric.buckets)
        return Instrument(
            metric, lambda values: HistogramSeries(parent.labels(self._model, *values))
        )
