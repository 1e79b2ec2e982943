"""The alerts as Grafana provisions its own: for who has no rules in Prometheus.

Only one of the two is to be installed, or everybody is paged twice. Grafana's Alertmanager does
not mute one alert by another.
"""

from __future__ import annotations

import re

from dashboards.alerts.alert import Alert, Comparison, Recording, Severity
from dashboards.alerts.prometheus import labels
from dashboards.alerts.runbooks import url
from dashboards.alerts.spec import (
    GRAFANA_EVALUATION_SECONDS,
    GROUPS,
    RECORDING_SECONDS,
    RECORDINGS,
)
from dashboards.alerts.text import document, seconds
from dashboards.boards.ids import panel_id

DATASOURCE_UID = "prometheus"
FOLDER = "Plimsoll"
ORGANIZATION_ID = 1

_QUERY, _CONDITION = "A", "C"
_EXPRESSION_UID = "__expr__"
_EVALUATORS = {Comparison.ABOVE: "gt", Comparison.BELOW: "lt"}
_LOOK_BACK_SECONDS = 600
_DAY_TEAM, _ON_CALL = "plimsoll-day-team", "plimsoll-on-call"


def rules() -> str:
    """For provisioning/alerting: all alerts, and the folder they are in."""
    return document(
        {
            "apiVersion": 1,
            "groups": [
                {
                    "orgId": ORGANIZATION_ID,
                    "name": name,
                    "folder": FOLDER,
                    "interval": seconds(GRAFANA_EVALUATION_SECONDS),
                    "rules": [_rule(alert) for alert in members],
                }
                for name, members in GROUPS.items()
            ],
        },
        f"The data source has to have the uid {DATASOURCE_UID}. Install these or the rules of\n"
        "Prometheus, not both: everybody would be paged twice.",
    )


def contact_points() -> str:
    """An example of who is told."""
    return document(
        {
            "apiVersion": 1,
            "contactPoints": [
                _contact_point(_DAY_TEAM, "http://alerts.example/day"),
                _contact_point(_ON_CALL, "http://alerts.example/page"),
            ],
        },
        "An example: put your own receivers here.",
    )


def policies() -> str:
    """An example of who is told of what."""
    return document(
        {
            "apiVersion": 1,
            "policies": [
                {
                    "orgId": ORGANIZATION_ID,
                    "receiver": _DAY_TEAM,
                    "group_by": ["grafana_folder", "namespace", "pod"],
                    "group_wait": "5s",
                    "group_interval": "1m",
                    "repeat_interval": "4h",
                    "routes": [
                        {
                            "receiver": _ON_CALL,
                            "object_matchers": [["severity", "=", Severity.CRITICAL.value]],
                        }
                    ],
                }
            ],
        },
        "An example. It replaces the whole notification policy of the organization.",
    )


def inlined(query: str, recordings: tuple[Recording, ...] = RECORDINGS) -> str:
    """The query without names that only rules of Prometheus record."""
    for item in recordings:
        past = rf"({item.query})[\1:{seconds(RECORDING_SECONDS)}]"
        query = re.sub(rf"{re.escape(item.name)}\[(\w+)\]", past, query)
        query = query.replace(item.name, f"({item.query})")
    return query


def _rule(alert: Alert) -> dict[str, object]:
    return {
        "uid": alert.uid,
        "title": alert.name,
        "condition": _CONDITION,
        "data": [_query(alert), _threshold(alert)],
        # As in Prometheus: where guards do not hold there are no data, nor are there any of memory
        # while an engine starts, and neither is what an alert says. That there is no server at all
        # is for PlimsollTargetAbsent to say, whose query answers also then.
        "noDataState": "OK",
        "execErrState": "Error",
        "for": seconds(alert.for_seconds),
        "isPaused": False,
        "labels": labels(alert),
        "annotations": {
            "summary": alert.summary,
            "description": alert.description.replace("$value", f"$values.{_QUERY}.Value"),
            "runbook_url": url(alert),
            "__dashboardUid__": alert.dashboard,
            "__panelId__": str(panel_id(alert.dashboard, alert.panel)),
        },
    }


def _query(alert: Alert) -> dict[str, object]:
    return {
        "refId": _QUERY,
        "relativeTimeRange": {"from": _LOOK_BACK_SECONDS, "to": 0},
        "datasourceUid": DATASOURCE_UID,
        "model": {
            "refId": _QUERY,
            "expr": inlined(alert.guarded_query),
            "instant": True,
            "range": False,
        },
    }


def _threshold(alert: Alert) -> dict[str, object]:
    condition = alert.condition
    return {
        "refId": _CONDITION,
        "relativeTimeRange": {"from": 0, "to": 0},
        "datasourceUid": _EXPRESSION_UID,
        "model": {
            "refId": _CONDITION,
            "type": "threshold",
            "datasource": {"type": _EXPRESSION_UID, "uid": _EXPRESSION_UID},
            "expression": _QUERY,
            "conditions": [
                {
                    "type": "query",
                    "evaluator": {
                        "type": _EVALUATORS[condition.comparison],
                        "params": [condition.threshold],
                    },
                }
            ],
        },
    }


def _contact_point(name: str, webhook: str) -> dict[str, object]:
    return {
        "orgId": ORGANIZATION_ID,
        "name": name,
        "receivers": [{"uid": name, "type": "webhook", "settings": {"url": webhook}}],
    }
