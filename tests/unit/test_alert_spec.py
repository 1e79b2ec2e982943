"""The alerts as data, the files that follow from them, and their runbooks."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from dashboards.alerts import ALERTS, GENERATED, Alert, AlertKind, Severity, files
from dashboards.alerts.alert import MAX_UID_LENGTH, AlertError, Comparison, Condition, Lead
from dashboards.alerts.grafana import inlined
from dashboards.alerts.runbooks import BASE_URL, FOLDER
from dashboards.alerts.spec import RECORDINGS
from dashboards.build import FOLDER as JSON_FOLDER
from service.telemetry.catalog import METRICS

# What Prometheus itself adds, and the parts of a histogram.
_SCRAPE = {"up"}
_SELECTOR = re.compile(r"\b(plimsoll_[a-z0-9_]+)\{([^}]*)\}")
_NAME = re.compile(r"\bplimsoll[_:][a-z0-9_:]+|\bup\b")


def each_alert() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


@functools.cache
def rules_of(name: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((GENERATED / name).read_text())
    groups = document["spec"]["groups"] if "spec" in document else document["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(
    ("path", "text"), [pytest.param(*item, id=item[0].name) for item in files().items()]
)
def test_the_files_are_as_the_alerts_have_them(path: Path, text: str) -> None:
    assert path.read_text() == text, "run python -m dashboards.build"


def test_no_other_files_are_generated() -> None:
    assert set(GENERATED.iterdir()) == {path for path in files() if path.parent == GENERATED}


def test_names_and_uids_are_unique() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    assert len({alert.uid for alert in ALERTS}) == len(ALERTS)


@each_alert()
def test_an_alert_is_valid_promql(alert: Alert) -> None:
    for query in (alert.expr, alert.condition.query, inlined(alert.guarded_query)):
        promql_parser.parse(query)


@each_alert()
def test_what_an_alert_asks_for_is_in_the_catalogue(alert: Alert) -> None:
    known = _SCRAPE | METRICS.keys() | {recording.name for recording in RECORDINGS}
    for name in _NAME.findall(alert.expr):
        assert name in known or name.removesuffix("_bucket") in known, name


@each_alert()
def test_what_an_alert_selects_by_is_in_the_catalogue(alert: Alert) -> None:
    for metric, matchers in _SELECTOR.findall(alert.expr):
        values_of = {label.name: label.values for label in METRICS[metric].labels}
        for matcher in matchers.split(","):
            found = re.fullmatch(r'(\w+)=~?"([^"]*)"', matcher)
            assert found, matcher
            values = values_of[found[1]]
            assert values is not None
            assert set(found[2].split("|")) <= set(values)


@each_alert()
def test_grafana_knows_no_recorded_names(alert: Alert) -> None:
    assert "plimsoll:" not in inlined(alert.guarded_query)


def test_a_recorded_name_is_replaced_with_and_without_a_past() -> None:
    name, query = RECORDINGS[0].name, RECORDINGS[0].query
    assert inlined(f"deriv({name}[15m]) + {name}") == f"deriv(({query})[15m:15s]) + ({query})"


@each_alert()
def test_an_alert_leads_to_a_panel(alert: Alert) -> None:
    assert alert.panel in panel_titles()[alert.dashboard]


@functools.cache
def panel_titles() -> dict[str, set[str]]:
    boards = (json.loads(path.read_text()) for path in JSON_FOLDER.glob("*.json"))
    return {board["uid"]: {panel["title"] for panel in board["panels"]} for board in boards}


@each_alert()
def test_a_runbook_belongs_to_its_alert(alert: Alert) -> None:
    text = (FOLDER / f"{alert.name}.md").read_text()
    assert text.startswith(f"# {alert.name}\n\n*{alert.severity}, {alert.kind}*\n")
    assert f"```promql\n{alert.condition.query}\n```" in text
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    assert headings == [
        "What it means",
        "How soon",
        "What Plimsoll does by itself",
        "How to check",
        "What to do",
        "How to tune or silence it",
    ]
    if alert.lead is not None:
        assert f"Expected lead: {alert.lead}." in " ".join(text.split())


def test_there_is_a_runbook_for_each_alert_and_nothing_else() -> None:
    pages = {path.name for path in FOLDER.iterdir()}
    assert pages == {"README.md", *(f"{alert.name}.md" for alert in ALERTS)}


def test_links_between_runbooks_lead_somewhere() -> None:
    for path in FOLDER.iterdir():
        for target in re.findall(r"\]\((\S+?)\)", path.read_text()):
            assert (FOLDER / target).is_file(), f"{path.name}: {target}"


def test_the_index_is_in_order_of_leads() -> None:
    text = (FOLDER / "README.md").read_text()
    by_name = {alert.name: alert for alert in ALERTS}
    listed = [by_name[name] for name in re.findall(r"\| \[(\w+)\]", text)]
    leads = [alert.lead.most_seconds for alert in listed if alert.lead is not None]
    assert len(listed) == len(ALERTS)
    assert leads == sorted(leads, reverse=True)


def test_prometheus_and_its_operator_have_the_same_rules() -> None:
    assert rules_of("prometheus-rules.yaml") == rules_of("prometheusrule.yaml")


def test_what_is_recorded_comes_before_what_reads_it() -> None:
    rules = rules_of("prometheus-rules.yaml")
    assert ["record" in rule for rule in rules] == [True] * len(RECORDINGS) + [False] * len(ALERTS)


def test_every_precursor_fires_within_a_climb_of_a_minute_and_a_half() -> None:
    """At least one that warns has no wait to speak of; critical ones never wait."""
    waits = {
        severity: [
            alert.for_seconds
            for alert in ALERTS
            if alert.kind is AlertKind.PRECURSOR and alert.severity is severity
        ]
        for severity in Severity
    }
    assert min(waits[Severity.WARNING]) == 0
    assert max(waits[Severity.CRITICAL]) <= 5


@each_alert()
def test_a_rule_of_prometheus_is_complete(alert: Alert) -> None:
    rule = next(
        rule for rule in rules_of("prometheus-rules.yaml") if rule.get("alert") == alert.name
    )
    assert rule["expr"] == alert.expr
    assert rule["for"] == f"{alert.for_seconds}s"
    assert rule["labels"] == {
        "severity": alert.severity.value,
        "kind": alert.kind.value,
        "component": "plimsoll",
    }
    annotations = rule["annotations"]
    assert annotations["runbook_url"] == f"{BASE_URL}{alert.name}.md"
    assert {"summary", "description", "dashboard_uid", "panel_id"} <= annotations.keys()


@each_alert()
def test_a_rule_of_grafana_is_complete(alert: Alert) -> None:
    rule = next(rule for rule in rules_of("grafana-rules.yaml") if rule["title"] == alert.name)
    query, threshold = rule["data"]
    assert len(rule["uid"]) <= MAX_UID_LENGTH
    assert rule["condition"] == threshold["refId"]
    assert threshold["model"]["expression"] == query["refId"]
    assert threshold["datasourceUid"] == "__expr__"
    assert query["model"]["expr"] == inlined(alert.guarded_query)
    assert query["model"]["instant"] is True
    evaluator = threshold["model"]["conditions"][0]["evaluator"]
    assert evaluator["params"] == [alert.condition.threshold]
    assert evaluator["type"] == {">": "gt", "<": "lt"}[alert.condition.comparison]
    # No data are no news, as in Prometheus: during the first start there is nothing of memory.
    assert rule["noDataState"] == "OK"
    assert "$value " not in rule["annotations"]["description"]


def test_grafana_files_have_their_structure() -> None:
    rules = yaml.safe_load((GENERATED / "grafana-rules.yaml").read_text())
    points = yaml.safe_load((GENERATED / "grafana-contact-points-example.yaml").read_text())
    policies = yaml.safe_load((GENERATED / "grafana-policies-example.yaml").read_text())
    assert rules["apiVersion"] == points["apiVersion"] == policies["apiVersion"] == 1
    assert {group["folder"] for group in rules["groups"]} == {"Plimsoll"}
    # Grafana evaluates in steps of 10 s.
    assert {group["interval"] for group in rules["groups"]} == {"10s"}
    names = {point["name"] for point in points["contactPoints"]}
    (policy,) = policies["policies"]
    assert {policy["receiver"], *(route["receiver"] for route in policy["routes"])} == names


def test_no_alert_mutes_one_that_mutes_it() -> None:
    """One that is muted still mutes, so that both would be silent."""
    mutes = {(source, target) for source, targets in muted().items() for target in targets}
    assert not {(target, source) for source, target in mutes} & mutes


def test_who_mutes_whom() -> None:
    precursors = {alert.name for alert in ALERTS if alert.kind is AlertKind.PRECURSOR}
    critical = {alert.name for alert in ALERTS if alert.severity is Severity.CRITICAL}
    # What has just happened is no longer to be told as what comes.
    assert muted()["PlimsollOutOfMemory"] >= precursors
    # The server that started after it may run out again, and somebody has to hear of it.
    assert muted()["PlimsollRestartAfterOutOfMemory"] & precursors == precursors - critical
    untouched = {
        alert.name
        for alert in ALERTS
        if alert.kind is AlertKind.BLINDNESS
        or (alert.kind is AlertKind.FACT and alert.severity is Severity.CRITICAL)
    } - {"PlimsollOutOfMemory"}  # which a lost request is worse than
    assert not untouched & set().union(*muted().values())


@functools.cache
def muted() -> dict[str, set[str]]:
    """By the name of an alert, the names of those that it mutes."""
    config = yaml.safe_load((GENERATED / "alertmanager-example.yaml").read_text())
    return {
        source.name: {
            target.name
            for rule in config["inhibit_rules"]
            if matches(source, rule["source_matchers"])
            for target in ALERTS
            if matches(target, rule["target_matchers"])
        }
        for source in ALERTS
    }


def matches(alert: Alert, matchers: list[str]) -> bool:
    labels = {"alertname": alert.name, "severity": alert.severity, "kind": alert.kind}
    parts = (re.fullmatch(r'(\w+)=~?"(.*)"', matcher) for matcher in matchers)
    return all(part and re.fullmatch(part[2], labels[part[1]]) for part in parts)


def test_a_query_stands_without_its_threshold() -> None:
    alert = made()
    assert alert.expr == "(a) > 1 and ((b) < 2)"
    assert alert.guarded_query == "(a) and ((b) < 2)"
    assert alert.uid == "plimsoll-some-thing"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Something"},
        {"name": "PlimsollOOM"},
        {"name": "PlimsollSomethingWithALongNameThatNobodyCanRead"},
        {"lead": None},
        {"kind": AlertKind.FACT},
    ],
    ids=["prefix", "case", "length", "no-lead", "lead-of-a-fact"],
)
def test_an_alert_that_does_not_say_what_it_has_to_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(AlertError):
        made(**changes)


def made(**changes: object) -> Alert:
    fields: dict[str, object] = {
        "name": "PlimsollSomeThing",
        "summary": "s",
        "description": "d",
        "condition": Condition(query="a", comparison=Comparison.ABOVE, threshold=1, unit="u"),
        "guards": (Condition(query="b", comparison=Comparison.BELOW, threshold=2, unit="u"),),
        "for_seconds": 0,
        "severity": Severity.INFO,
        "kind": AlertKind.PRECURSOR,
        "lead": Lead(1, 2),
        "dashboard": "plimsoll-overview",
        "panel": "p",
    }
    return Alert(**{**fields, **changes})  # type: ignore[arg-type]
