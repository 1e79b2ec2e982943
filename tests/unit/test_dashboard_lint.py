"""Each rule of the linter objects to what it is for, and to nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.lint import alert_rules, board_rules, query, query_rules
from dashboards.lint.check import check
from dashboards.lint.series import Series, exported, recorded

FOLDER = Path(__file__).parents[2] / "dashboards"
RUNBOOKS = {path.name for path in (FOLDER / "runbooks").glob("*.md")}

LABELS = frozenset({"model", "pod", "kind"})
KNOWN = {
    "jobs_total": Series(cumulative=True, ratio=False, labels=LABELS),
    "wait_seconds_bucket": Series(cumulative=True, ratio=False, labels=LABELS | {"le"}),
    "used_bytes": Series(cumulative=False, ratio=False, labels=LABELS),
    "usage_ratio": Series(cumulative=False, ratio=True, labels=LABELS),
    "rule:spare_bytes": recorded(),
}
ZOOM = "[$__rate_interval]"
QUANTILE = "histogram_quantile(0.9, {}(rate(wait_seconds_bucket[5m])))"

CASES = [
    (query_rules.metrics_exist, "used_byte", "used_bytes"),
    (query_rules.metrics_exist, '{pod="a"}', "rule:spare_bytes > 0"),
    (query_rules.labels_exist, 'used_bytes{owner="x"}', 'used_bytes{kind="x",pod=~"$pod"}'),
    (query_rules.labels_exist, 'used_bytes{le="1"}', 'rule:spare_bytes{any="x"}'),
    (query_rules.groups_exist, "sum by (owner) (used_bytes)", "sum by (kind) (used_bytes)"),
    (query_rules.groups_exist, "max without (owner) (used_bytes)", "max(used_bytes)"),
    (
        query_rules.servers_are_told_apart,
        "max by (pod, instance) (used_bytes)",
        "max by (namespace, pod, instance, kind) (used_bytes)",
    ),
    (
        query_rules.servers_are_told_apart,
        "max by (namespace, pod) (used_bytes)",
        "max without (pod) (used_bytes) + max(used_bytes)",
    ),
    (query_rules.counters_are_rated, "sum(jobs_total)", "sum(rate(jobs_total[5m]))"),
    (query_rules.counters_are_rated, "max_over_time(jobs_total[5m])", "increase(jobs_total[5m])"),
    (query_rules.bounds_are_kept, QUANTILE.format("sum by (pod)"), QUANTILE.format("sum by (le)")),
    (query_rules.bounds_are_kept, QUANTILE.format("sum"), QUANTILE.format("sum without (pod)")),
    (query_rules.ratios_are_not_summed, "sum(usage_ratio)", "max(usage_ratio)"),
    (query_rules.ratios_are_not_summed, "sum((used_bytes / used_bytes))", "sum(used_bytes / 2)"),
    (
        query_rules.ratios_are_not_summed,
        "sum(avg_over_time(used_bytes[5m]))",
        "max(avg_over_time(used_bytes[5m]))",
    ),
    (query_rules.rates_follow_the_zoom, "rate(jobs_total[5m])", f"rate(jobs_total{ZOOM})"),
]


@pytest.mark.parametrize(("rule", "bad", "good"), CASES)
def test_a_rule_on_expressions(rule: Any, bad: str, good: str) -> None:
    assert len(list(rule(query.parse(bad), KNOWN))) == 1
    assert list(rule(query.parse(good), KNOWN)) == []


def test_every_rule_on_expressions_has_a_case() -> None:
    assert {rule for rule, _, _ in CASES} == set(query_rules.ON_DASHBOARDS)


def test_histograms_have_three_series() -> None:
    names = exported().keys()
    name = "plimsoll_time_to_first_token_seconds"
    assert {f"{name}_bucket", f"{name}_sum", f"{name}_count"} <= names
    assert name not in names


def test_variables_have_values_before_parsing() -> None:
    assert query.substituted('a{pod=~"$pod",m="${model:regex}"}[$__range]') == (
        'a{pod=~"any",m="any"}[7901s]'
    )


def board() -> Any:
    panel = {
        "id": 1,
        "type": "stat",
        "title": "Used",
        "description": "Bytes. **What to do:** Nothing.",
        "datasource": {"uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": "bytes"}},
        "targets": [{"expr": "used_bytes", "datasource": {"uid": "${datasource}"}}],
    }
    row = {"id": 2, "type": "row", "title": "More", "panels": [{**panel, "id": 3, "title": "In"}]}
    return {"uid": "u", "panels": [panel, row], "annotations": {"list": []}}


def test_a_board_in_order() -> None:
    assert [list(rule(board())) for rule in board_rules.RULES] == [[]] * len(board_rules.RULES)


@pytest.mark.parametrize(
    ("rule", "key", "value"),
    [
        (board_rules.datasource_is_variable, "datasource", {"uid": "prometheus"}),
        (board_rules.datasource_is_variable, "datasource", "prometheus"),
        (board_rules.datasource_is_variable, "targets", [{"expr": "used_bytes"}]),
        (board_rules.units_are_set, "fieldConfig", {"defaults": {}}),
        (board_rules.panels_are_explained, "description", "Bytes."),
        (board_rules.panels_are_explained, "title", ""),
        (board_rules.panels_have_queries, "targets", []),
    ],
)
@pytest.mark.parametrize("folded", [False, True])
def test_a_rule_on_panels(rule: Any, key: str, value: object, folded: bool) -> None:
    changed = board()
    panel = changed["panels"][1]["panels"][0] if folded else changed["panels"][0]
    panel[key] = value
    assert len(list(rule(changed))) == 1


def test_two_panels_with_an_id() -> None:
    changed = board()
    changed["panels"][1]["panels"][0]["id"] = 1
    assert [name for name, _ in board_rules.panel_ids_are_unique(changed)] == ["Used", "In"]


def test_two_boards_with_a_uid() -> None:
    other = {**board(), "uid": "v"}
    boards = {"a": board(), "b": board(), "c": other}
    assert [name for name, _ in board_rules.uids_are_unique(boards)] == ["a", "b"]


def test_where_an_alert_leads() -> None:
    alert = {
        "annotations": {"runbook_url": "https://x/A.md", "dashboard_uid": "u", "panel_id": "1"}
    }
    assert list(alert_rules.runbook_resolves(alert, {"A.md"})) == []
    assert len(list(alert_rules.runbook_resolves(alert, {"B.md"}))) == 1
    assert len(list(alert_rules.runbook_resolves({}, {"B.md"}))) == 1
    assert list(alert_rules.panel_resolves(alert, {"u": {"1"}})) == []
    assert len(list(alert_rules.panel_resolves(alert, {"u": {"2"}}))) == 1
    assert len(list(alert_rules.panel_resolves(alert, {"v": {"1"}}))) == 1


def committed() -> tuple[dict[str, Any], Any]:
    boards = {path.name: json.loads(path.read_text()) for path in FOLDER.glob("json/*.json")}
    rules = yaml.safe_load((FOLDER / "alerts/generated/prometheus-rules.yaml").read_text())
    return boards, rules


MUTANTS = [
    ("metrics_exist", "plimsoll_server_state", "plimsoll_server_stat"),
    ("labels_exist", "pod=~", "pot=~"),
    ("rates_follow_the_zoom", "[$__rate_interval]", "[5m]"),
    ("bounds_are_kept", "by (le", "by (pod"),
    ("servers_are_told_apart", "by (namespace, pod, instance", "by (pod"),
    ("counters_are_rated", "rate(", "max_over_time("),
    ("datasource_is_variable", '"${datasource}"', '"prometheus"'),
    ("parses", "sum(", "sum(("),
]


@pytest.mark.parametrize(("rule", "old", "new"), MUTANTS)
def test_a_mutant_of_the_committed_boards_is_found(rule: str, old: str, new: str) -> None:
    boards, rules = committed()
    before = set(check(boards, rules, "rules", RUNBOOKS))
    mutants = {
        file: json.loads(json.dumps(data).replace(old, new)) for file, data in boards.items()
    }
    assert mutants != boards
    found = set(check(mutants, rules, "rules", RUNBOOKS)) - before
    assert rule in {finding.rule for finding in found}


def test_a_lost_runbook_and_a_lost_panel_are_found() -> None:
    boards, rules = committed()
    assert "runbook_resolves" in {f.rule for f in check(boards, rules, "rules", set())}
    moved = copy.deepcopy(boards)
    for each in moved.values():
        each["uid"] += "-moved"
    assert "panel_resolves" in {f.rule for f in check(moved, rules, "rules", RUNBOOKS)}


def test_the_committed_files_have_no_findings() -> None:
    boards, rules = committed()
    assert check(boards, rules, "prometheus-rules.yaml", RUNBOOKS) == []
