"""PromQL from the catalogue: a metric that does not exist cannot be asked for.

Pure. Every selector is limited to what the variables of the dashboard select. Amounts are added
up; shares are computed from added-up amounts, since shares of servers do not add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.telemetry.catalog import Kind, Metric

SCOPE = ("namespace", "model", "pod")
# What tells one server from another: pods of two namespaces may have the same name, and without
# Kubernetes there may be neither. Every Prometheus adds the instance.
SERVER = ("namespace", "pod", "instance")
PER_GPU = (*SERVER, "gpu")

# At least four scrapes, so that a rate always has two samples.
WINDOW = "$__rate_interval"
# Below any rate of interest, above nothing: what keeps a share of nothing from being no number.
_TINY = "1e-9"


class QueryError(ValueError):
    """A query that the metric does not answer."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and the name of its series in the legend."""

    expr: str
    legend: str


def named(what: str = "") -> str:
    """Name of a series of each server, in a legend; `what` tells several of one server apart.

    Grafana leaves out labels that a series does not have.
    """
    return " ".join([*(f"{{{{{label}}}}}" for label in SERVER), what]).rstrip()


def select(metric: Metric, suffix: str = "", /, **matchers: str | Sequence[str]) -> str:
    """Series of a metric in scope. A matcher is a value of a label, or all those that match.

    Raises:
        QueryError: the metric has no such label, or the label no such value.
    """
    terms = [f'{name}=~"${name}"' for name in SCOPE]
    for name, wanted in matchers.items():
        values = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        _check_matcher(metric, name, values)
        operator = "=" if len(values) == 1 else "=~"
        terms.append(f'{name}{operator}"{"|".join(values)}"')
    return f"{metric.name}{suffix}{{{','.join(terms)}}}"


def gauge(metric: Metric, **matchers: str | Sequence[str]) -> str:
    """Values of a gauge."""
    _check_kind(metric, Kind.GAUGE)
    return select(metric, **matchers)


def rate(metric: Metric, **matchers: str | Sequence[str]) -> str:
    """Growth of a counter, per second."""
    _check_kind(metric, Kind.COUNTER)
    return f"rate({select(metric, **matchers)}[{WINDOW}])"


def increase(metric: Metric, **matchers: str | Sequence[str]) -> str:
    """Growth of a counter within a window, for events too rare for a rate."""
    _check_kind(metric, Kind.COUNTER)
    return f"increase({select(metric, **matchers)}[{WINDOW}])"


def total(vector: str, by: Sequence[str] = ()) -> str:
    """Sum, of amounts."""
    return _aggregate("sum", vector, by)


def highest(vector: str, by: Sequence[str] = ()) -> str:
    """Maximum, of what does not add up."""
    return _aggregate("max", vector, by)


def lowest(vector: str, by: Sequence[str] = ()) -> str:
    """Minimum, of what runs out where it is least."""
    return _aggregate("min", vector, by)


def least_of(vectors: Sequence[str], by: Sequence[str] = ()) -> str:
    """Minimum over several metrics with the same labels, which `or` alone would take for one."""
    told_apart = (
        f'label_replace({vector}, "of", "{index}", "", "")' for index, vector in enumerate(vectors)
    )
    return lowest(" or ".join(told_apart), by)


def share(part: str, whole: str) -> str:
    """Quotient of two amounts with the same labels; no number where the whole is 0."""
    return f"{part} / {whole}"


def share_or_zero(part: str, whole: str) -> str:
    """Quotient of two amounts with the same labels; 0 where the whole, and so the part, is 0."""
    return f"{part} / clamp_min({whole}, {_TINY})"


def quantile(q: float, metric: Metric, by: Sequence[str] = ()) -> str:
    """Of a histogram, what the share `q` of observations stays below."""
    return f"histogram_quantile({q}, {buckets(metric, by)})"


def buckets(metric: Metric, by: Sequence[str] = ()) -> str:
    """Observations of a histogram per second and bucket."""
    _check_kind(metric, Kind.HISTOGRAM)
    return total(f"rate({select(metric, '_bucket')}[{WINDOW}])", ("le", *by))


def mean(metric: Metric, by: Sequence[str] = ()) -> str:
    """Of a histogram, the mean observation; no number where there is none."""
    _check_kind(metric, Kind.HISTOGRAM)
    observed, count = (
        total(f"rate({select(metric, suffix)}[{WINDOW}])", by) for suffix in ("_sum", "_count")
    )
    return share(observed, count)


def within(bound: float, metric: Metric, by: Sequence[str] = ()) -> str:
    """Of a histogram, the share of observations up to `bound`; 1 where there is none.

    Raises:
        QueryError: no bucket ends at `bound`.
    """
    _check_kind(metric, Kind.HISTOGRAM)
    if bound not in metric.buckets:
        raise QueryError(f"{metric.name} has no bucket up to {bound}, but {metric.buckets}")
    # The client writes the bound of a bucket as a float.
    up_to = select(metric, "_bucket").removesuffix("}") + f',le="{float(bound)}"}}'
    every = total(f"rate({select(metric, '_count')}[{WINDOW}])", by)
    beyond = f"({every} - {total(f'rate({up_to}[{WINDOW}])', by)})"
    return f"1 - {share_or_zero(beyond, every)}"


def code_of_state(metric: Metric, label: str, by: Sequence[str] = SERVER) -> str:
    """Of a metric that is 1 for the one state in force: its number, counted from 1."""
    values = next((known.values for known in metric.labels if known.name == label), None)
    if values is None:
        raise QueryError(f"{metric.name} has no label {label} with known values")
    ranks = (
        f"{rank} * {gauge(metric, **{label: value})}" for rank, value in enumerate(values, start=1)
    )
    return highest(" or ".join(ranks), by)


def _aggregate(operator: str, vector: str, by: Sequence[str]) -> str:
    grouping = f" by ({', '.join(by)}) " if by else ""
    return f"{operator}{grouping}({vector})"


def _check_kind(metric: Metric, kind: Kind) -> None:
    if metric.kind is not kind:
        raise QueryError(f"{metric.name} is a {metric.kind.value}, not a {kind.value}")


def _check_matcher(metric: Metric, name: str, values: Sequence[str]) -> None:
    label = next((label for label in metric.labels if label.name == name), None)
    if label is None:
        raise QueryError(f"{metric.name} has no label {name}, but {metric.label_names}")
    for value in values:
        if label.values is not None and value not in label.values:
            raise QueryError(f"{metric.name}: {name} is never {value}, but {label.values}")
