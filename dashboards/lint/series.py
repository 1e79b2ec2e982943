"""The series that a server exports, by the names that queries use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.telemetry.catalog import METRICS, Kind, Metric

# Added by whoever scrapes.
SCRAPER_LABELS = frozenset({"namespace", "pod", "job", "instance", "container", "node", "service"})


@dataclass(frozen=True, slots=True)
class Series:
    """What can be said of all series of a name."""

    cumulative: bool  # to be seen as a rate
    ratio: bool
    labels: frozenset[str] | None  # None: not known, as of a recording


def recorded() -> Series:
    """Of a series that Prometheus computes by a rule."""
    return Series(cumulative=False, ratio=False, labels=None)


def exported(metrics: Mapping[str, Metric] = METRICS) -> dict[str, Series]:
    """All series that queries can name, by their names."""
    found = {
        "up": Series(cumulative=False, ratio=False, labels=SCRAPER_LABELS),
        "ALERTS": recorded(),
    }
    for metric in metrics.values():
        labels = SCRAPER_LABELS | {metric.model_label, *metric.label_names}
        if metric.kind is Kind.HISTOGRAM:
            cumulative = Series(cumulative=True, ratio=False, labels=labels)
            found[f"{metric.name}_sum"] = found[f"{metric.name}_count"] = cumulative
            found[f"{metric.name}_bucket"] = Series(
                cumulative=True, ratio=False, labels=labels | {"le"}
            )
        else:
            found[metric.name] = Series(
                cumulative=metric.kind is Kind.COUNTER,
                ratio=metric.unit == "ratio",
                labels=labels,
            )
    return found
