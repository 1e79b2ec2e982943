"""Parts of a page, each of which writes its families and remembers what it need not write again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from service.telemetry.catalog import METRICS, Kind, Metric
from service.telemetry.exposition import Format, head, metric_labels, sample_end, sample_start
from service.telemetry.series import Series, SeriesText

S = TypeVar("S", bound=Series)


class UncataloguedError(ValueError):
    """A metric, a kind or a label value that the catalogue does not have."""

    def __init__(self, metric: Metric, what: str) -> None:
        super().__init__(f"{metric.name}: {what}")
        self.metric = metric


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


class Section(Protocol):
    """Some families of a page."""

    def write(self, page_format: Format) -> Iterator[str]:
        """Their text in pieces of a few lines, each as things are when it is taken."""


class Instrument(Generic[S]):
    """All series of a counter or a histogram."""

    def __init__(self, metric: Metric, make: Callable[[tuple[str, ...]], S]) -> None:
        """Makes the series of all label values that are known, so that none is born at 1."""
        self.metric = metric
        self._make = make
        self._series: dict[tuple[str, ...], S] = {}
        for values in itertools.product(*(label.values or () for label in metric.labels)):
            self.series(values)

    def series(self, values: tuple[str, ...]) -> S:
        """The one with these label values, which are of the catalogue."""
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = self._make(values)
        return series

    def later_than(self, count: int) -> Iterator[tuple[tuple[str, ...], S]]:
        """Label values and series without the first `count` of them."""
        return itertools.islice(self._series.items(), count, None)


class InstrumentSection(Generic[S]):
    """An instrument under the name of its metric, or under another."""

    def __init__(self, named: Metric, model: str, instrument: Instrument[S]) -> None:
        self._named = named
        self._model = model
        self._instrument = instrument
        self._texts: list[SeriesText] = []
        self._heads = {page_format: head(named, page_format) for page_format in Format}

    def write(self, page_format: Format) -> Iterator[str]:
        metric = self._instrument.metric
        for values, series in self._instrument.later_than(len(self._texts)):
            text = SeriesText.of(series, metric, self._named, self._model, values)
            self._texts.append(text)
        yield self._heads[page_format]
        for text in self._texts:
            yield text.text(page_format)


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that is looked up when it is asked for."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()  # in the order of `metric.labels`


@dataclass(frozen=True, slots=True)
class _Start:
    """Of the line of a reading that was found to be of the catalogue."""

    metric: Metric
    text: str


class ReadingsSection:
    """What is looked up for each page."""

    def __init__(self, model: str, read: Callable[[], Iterable[Reading]]) -> None:
        self._model = model
        self._read = read
        self._starts: dict[tuple[str, tuple[str, ...]], _Start] = {}  # of the latest page

    def write(self, page_format: Format) -> Iterator[str]:
        known, self._starts = self._starts, {}
        before: Metric | None = None
        for reading in self._read():
            metric, key = reading.metric, (reading.metric.name, reading.labels)
            start = known.get(key)
            if start is None or start.metric is not metric:
                check(metric, metric.kind, reading.labels)
                labels = metric_labels(metric, self._model, reading.labels)
                start = _Start(metric, sample_start(metric.name, labels))
            self._starts[key] = start
            family_head = "" if metric is before else head(metric, page_format)
            before = metric
            yield family_head + start.text + sample_end(reading.value)
