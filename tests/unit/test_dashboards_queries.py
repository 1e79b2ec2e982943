"""Queries from metrics: what they say, and what cannot be asked."""

from __future__ import annotations

import pytest

from dashboards.boards.queries import (
    QueryError,
    buckets,
    code_of_state,
    gauge,
    highest,
    increase,
    least_of,
    lowest,
    mean,
    named,
    quantile,
    rate,
    select,
    share,
    share_or_zero,
    total,
    within,
)
from service.telemetry.catalog import Kind, Label, Metric

SCOPE = 'namespace=~"$namespace",model=~"$model",pod=~"$pod"'

COUNTER = Metric(
    name="plimsoll_things_total",
    kind=Kind.COUNTER,
    help="",
    labels=(Label("kind", ("good", "bad", "odd")), Label("tenant", None)),
)
GAUGE = Metric(name="plimsoll_level", kind=Kind.GAUGE, help="")
HISTOGRAM = Metric(
    name="plimsoll_wait_seconds", kind=Kind.HISTOGRAM, help="", buckets=(0.5, 1.0, 20.0)
)
STATE = Metric(
    name="plimsoll_state", kind=Kind.GAUGE, help="", labels=(Label("state", ("up", "down")),)
)


def test_a_selector_has_the_scope_and_its_matchers() -> None:
    assert select(GAUGE) == f"plimsoll_level{{{SCOPE}}}"
    assert select(COUNTER, kind="bad") == f'plimsoll_things_total{{{SCOPE},kind="bad"}}'
    several = select(COUNTER, kind=("bad", "odd"))
    assert several == f'plimsoll_things_total{{{SCOPE},kind=~"bad|odd"}}'


def test_a_label_without_known_values_takes_any() -> None:
    assert 'tenant="anyone"' in select(COUNTER, tenant="anyone")


def test_an_unknown_label_or_value_is_refused() -> None:
    with pytest.raises(QueryError, match=r"plimsoll_things_total has no label color"):
        select(COUNTER, color="red")
    with pytest.raises(QueryError, match=r"plimsoll_things_total: kind is never ugly"):
        select(COUNTER, kind=("good", "ugly"))


def test_a_counter_is_seen_as_growth_within_a_window_that_grafana_chooses() -> None:
    assert rate(COUNTER, kind="bad") == f"rate({select(COUNTER, kind='bad')}[$__rate_interval])"
    assert increase(COUNTER) == f"increase({select(COUNTER)}[$__rate_interval])"


@pytest.mark.parametrize("ask", [rate, increase, buckets, mean, lambda m: quantile(0.5, m)])
def test_a_gauge_has_neither_growth_nor_distribution(ask) -> None:
    with pytest.raises(QueryError, match="plimsoll_level is a gauge"):
        ask(GAUGE)


def test_a_counter_is_no_gauge() -> None:
    with pytest.raises(QueryError, match="plimsoll_things_total is a counter, not a gauge"):
        gauge(COUNTER)


def test_a_server_has_all_its_names() -> None:
    assert named() == "{{namespace}} {{pod}} {{instance}}"
    assert named("goal") == f"{named()} goal"


def test_aggregations() -> None:
    assert total("x") == "sum(x)"
    assert total("x", ("pod", "kind")) == "sum by (pod, kind) (x)"
    assert highest("x", ("pod",)) == "max by (pod) (x)"
    assert lowest("x") == "min(x)"


def test_a_share_of_nothing_can_be_no_number_or_0() -> None:
    assert share("a", "b") == "a / b"
    assert share_or_zero("a", "b") == "a / clamp_min(b, 1e-9)"


def test_a_quantile_keeps_the_bounds_of_buckets() -> None:
    assert quantile(0.99, HISTOGRAM, ("pod",)) == (
        "histogram_quantile(0.99, sum by (le, pod) "
        f"(rate(plimsoll_wait_seconds_bucket{{{SCOPE}}}[$__rate_interval])))"
    )


def test_a_mean_divides_sum_by_count() -> None:
    observed, count = mean(HISTOGRAM).split(" / ")
    assert "plimsoll_wait_seconds_sum{" in observed
    assert "plimsoll_wait_seconds_count{" in count


def test_what_is_within_a_bound_is_what_no_bucket_beyond_it_has() -> None:
    expr = within(20, HISTOGRAM)
    assert expr.startswith("1 - (")
    assert 'le="20.0"' in expr
    with pytest.raises(QueryError, match=r"has no bucket up to 2, but \(0\.5, 1\.0, 20\.0\)"):
        within(2, HISTOGRAM)


def test_the_state_in_force_has_its_number() -> None:
    up, down = (gauge(STATE, state=state) for state in ("up", "down"))
    assert code_of_state(STATE, "state") == (
        f"max by (namespace, pod, instance) (1 * {up} or 2 * {down})"
    )
    with pytest.raises(QueryError, match="no label tenants"):
        code_of_state(COUNTER, "tenants")


def test_the_least_of_two_metrics_tells_them_apart() -> None:
    # `a or b` of the same labels is a alone.
    assert least_of(("a", "b"), ("pod",)) == (
        'min by (pod) (label_replace(a, "of", "0", "", "") or label_replace(b, "of", "1", "", ""))'
    )
