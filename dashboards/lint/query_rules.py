"""Rules on one expression. Each yields a message per objection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import promql_parser

from dashboards.lint.query import RATE_INTERVAL, Node, bare, nodes, selectors
from dashboards.lint.series import Series

_OF_COUNTERS = {"rate", "irate", "increase", "resets", "changes"}
_RATES = {"rate", "irate", "increase"}
_AVERAGES = {"histogram_quantile", "avg_over_time", "quantile_over_time"}
# Only together do they tell one server from another, whoever scrapes.
_SERVER = {"namespace", "pod", "instance"}


def metrics_exist(root: Node, known: Mapping[str, Series]) -> Iterator[str]:
    """A renamed metric leaves panels empty and alerts silent."""
    for selector in selectors(root):
        if selector.name not in known:
            yield f"no metric is named {selector.name or '(nothing)'}"


def labels_exist(root: Node, known: Mapping[str, Series]) -> Iterator[str]:
    """A matcher on a label that the metric does not have selects nothing, or everything."""
    for selector in selectors(root):
        series = known.get(selector.name)
        if series is not None and series.labels is not None:
            for label in sorted(selector.labels - series.labels):
                yield f"{selector.name} has no label {label}"


def groups_exist(root: Node, known: Mapping[str, Series]) -> Iterator[str]:
    """Aggregation by a label that nothing below has is aggregation without it."""
    for node in nodes(root):
        if not isinstance(node, promql_parser.AggregateExpr) or node.modifier is None:
            continue
        below = [known.get(selector.name) for selector in selectors(node.expr)]
        sets = [series.labels for series in below if series and series.labels is not None]
        if len(sets) == len(below):
            for label in sorted(set(node.modifier.labels) - frozenset().union(*sets)):
                yield f"aggregates by {label}, which nothing in it has"


def servers_are_told_apart(root: Node, _known: Mapping[str, Series]) -> Iterator[str]:
    """Grouped by a part of what names a server, several become one line, which is wrong of all."""
    for node in nodes(root):
        if isinstance(node, promql_parser.AggregateExpr) and _SERVER & _groups(node):
            for label in sorted(_SERVER - _groups(node)):
                yield f"aggregates by server without {label}"


def _groups(node: Node) -> set[str]:
    """Labels that an aggregation is by."""
    if node.modifier is None or node.modifier.type != promql_parser.AggModifierType.By:
        return set()
    return set(node.modifier.labels)


def counters_are_rated(root: Node, known: Mapping[str, Series]) -> Iterator[str]:
    """The level of a counter says how long ago the server started."""
    for selector in selectors(root):
        series = known.get(selector.name)
        calls = _calls(selector.parents)
        if series is not None and series.cumulative and not _OF_COUNTERS & calls:
            yield f"{selector.name} is a counter and is in no rate or increase"


def _calls(parents: tuple[Node, ...]) -> set[str]:
    return {node.func.name for node in parents if isinstance(node, promql_parser.Call)}


def bounds_are_kept(root: Node, _known: Mapping[str, Series]) -> Iterator[str]:
    """A quantile needs the buckets: `le` has to survive each aggregation below it."""
    for node in nodes(root):
        if not isinstance(node, promql_parser.Call) or node.func.name != "histogram_quantile":
            continue
        for below in nodes(node.args[1]):
            if isinstance(below, promql_parser.AggregateExpr) and not _keeps(below, "le"):
                yield "histogram_quantile of an aggregation without le"


def _keeps(node: Node, label: str) -> bool:
    if node.modifier is None:
        return False
    is_by = bool(node.modifier.type == promql_parser.AggModifierType.By)
    return (label in node.modifier.labels) == is_by


def ratios_are_not_summed(root: Node, known: Mapping[str, Series]) -> Iterator[str]:
    """The sum of the shares of several servers is a share of nothing."""
    for node in nodes(root):
        if isinstance(node, promql_parser.AggregateExpr) and str(node.op) == "sum":
            summed = bare(node.expr)
            if isinstance(summed, promql_parser.Call) and summed.func.name in _AVERAGES:
                yield f"sums {summed.func.name}"
            elif _is_quotient(summed):
                yield "sums quotients"
            for selector in selectors(summed):
                if (series := known.get(selector.name)) is not None and series.ratio:
                    yield f"sums {selector.name}, a ratio"


def _is_quotient(node: Node) -> bool:
    return (
        isinstance(node, promql_parser.BinaryExpr)
        and str(node.op) == "/"
        and all(any(selectors(side)) for side in (node.lhs, node.rhs))
    )


def rates_follow_the_zoom(root: Node, _known: Mapping[str, Series]) -> Iterator[str]:
    """On a dashboard: a fixed range misses scrapes when zoomed out, and has too few zoomed in."""
    for node in nodes(root):
        if isinstance(node, promql_parser.Call) and node.func.name in _RATES:
            for below in nodes(node):
                if isinstance(below, promql_parser.MatrixSelector) and below.range != RATE_INTERVAL:
                    yield f"{node.func.name} over another range than $__rate_interval"


EVERYWHERE = (
    metrics_exist,
    labels_exist,
    groups_exist,
    servers_are_told_apart,
    counters_are_rated,
    bounds_are_kept,
    ratios_are_not_summed,
)
ON_DASHBOARDS = (*EVERYWHERE, rates_follow_the_zoom)
