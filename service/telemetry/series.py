"""One counter or histogram with its labels, and the lines that tell it."""

from __future__ import annotations

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample

from service.telemetry.catalog import Metric
from service.telemetry.exposition import (
    Format,
    exemplar_end,
    metric_labels,
    sample_end,
    sample_start,
)


class Series:
    """Knows when it has changed, so that nothing else has to be written anew."""

    __slots__ = ("_child", "_read", "_samples", "changes")

    def __init__(self, child: Counter | Histogram) -> None:
        """`child`: an instrument with all its labels."""
        self.changes = 0
        self._child = child
        self._read = -1  # changes at the last reading
        self._samples: list[Sample] = []

    def samples(self) -> list[Sample]:
        """What it says now; always of the same names in the same order."""
        if self._read != self.changes:
            self._read = self.changes
            (family,) = self._child.collect()
            self._samples = family.samples
        return self._samples


class CounterSeries(Series):
    """A counter."""

    __slots__ = ("_counter",)

    def __init__(self, counter: Counter) -> None:
        super().__init__(counter)
        self._counter = counter

    def inc(self, amount: float = 1) -> None:
        """`amount` is not negative."""
        self._counter.inc(amount)
        self.changes += 1


class HistogramSeries(Series):
    """A histogram."""

    __slots__ = ("_histogram",)

    def __init__(self, histogram: Histogram) -> None:
        super().__init__(histogram)
        self._histogram = histogram

    def observe(self, value: float, exemplar: dict[str, str] | None = None) -> None:
        """An exemplar has at most 128 characters in all, and stays until the next in its bucket."""
        self._histogram.observe(value, exemplar)
        self.changes += 1


class SeriesText:
    """The lines of a series under one name."""

    __slots__ = ("_series", "_starts", "_texts", "_written")

    def __init__(self, series: Series, starts: list[str]) -> None:
        """`starts`: of each sample, the line up to its value."""
        self._series = series
        self._starts = starts
        self._written: dict[Format, int] = {}  # changes of the series that a text tells
        self._texts: dict[Format, str] = {}

    @classmethod
    def of(
        cls, series: Series, metric: Metric, named: Metric, model: str, values: tuple[str, ...]
    ) -> SeriesText:
        """Of a series of `metric`, told as one of `named`."""
        labels = metric_labels(named, model, values)
        return cls(
            series,
            [
                # Of its own labels, a sample of a child has only the bound of a bucket.
                sample_start(
                    named.family + sample.name.removeprefix(metric.family),
                    [*labels, *sample.labels.items()],
                )
                for sample in series.samples()
            ],
        )

    def text(self, page_format: Format) -> str:
        """All lines, as they are now."""
        changes = self._series.changes
        if self._written.get(page_format) != changes:
            with_exemplars = page_format is Format.OPENMETRICS
            self._texts[page_format] = "".join(
                start + sample_end(sample.value)
                if sample.exemplar is None or not with_exemplars
                else start + exemplar_end(sample.value, sample.exemplar)
                for start, sample in zip(self._starts, self._series.samples(), strict=True)
            )
            self._written[page_format] = changes
        return self._texts[page_format]
