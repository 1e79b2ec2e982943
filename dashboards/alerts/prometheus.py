"""The alerts as rules of Prometheus: a file of its own, and a resource of its operator."""

from __future__ import annotations

from dashboards.alerts.alert import Alert
from dashboards.alerts.runbooks import url
from dashboards.alerts.spec import EVALUATION_SECONDS, GROUPS, RECORDING_SECONDS, RECORDINGS
from dashboards.alerts.text import COMPONENT, document, seconds
from dashboards.boards.ids import panel_id

RECORDING_GROUP = "plimsoll.recordings"


def rule_file() -> str:
    """For `rule_files` of Prometheus."""
    return document(
        {"groups": groups()},
        f"Prometheus is to scrape every {EVALUATION_SECONDS} s: with 15 s, alerts come up to 10 s "
        "later.",
    )


def rule_resource() -> str:
    """For the Prometheus operator."""
    return document(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "plimsoll", "labels": {"app.kubernetes.io/name": COMPONENT}},
            "spec": {"groups": groups()},
        },
        "The operator takes it up if its ruleSelector matches the labels.",
    )


def groups() -> list[dict[str, object]]:
    """All rules, those first that others read."""
    recordings: list[object] = [{"record": item.name, "expr": item.query} for item in RECORDINGS]
    alerts: list[dict[str, object]] = [
        {
            "name": name,
            "interval": seconds(EVALUATION_SECONDS),
            "rules": [_rule(alert) for alert in members],
        }
        for name, members in GROUPS.items()
    ]
    return [
        {"name": RECORDING_GROUP, "interval": seconds(RECORDING_SECONDS), "rules": recordings},
        *alerts,
    ]


def labels(alert: Alert) -> dict[str, str]:
    """By which alerts are routed and muted."""
    return {
        "severity": alert.severity.value,
        "kind": alert.kind.value,
        "component": COMPONENT,
    }


def _rule(alert: Alert) -> dict[str, object]:
    lead = {} if alert.lead is None else {"expected_lead": str(alert.lead)}
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": seconds(alert.for_seconds),
        "labels": labels(alert),
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            **lead,
            "runbook_url": url(alert),
            "dashboard_uid": alert.dashboard,
            "panel_id": str(panel_id(alert.dashboard, alert.panel)),
        },
    }
