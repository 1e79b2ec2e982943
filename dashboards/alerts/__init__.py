"""Alerts as plain data, and the files for Prometheus, its operator, Alertmanager and Grafana."""

from __future__ import annotations

from pathlib import Path

from dashboards.alerts import alertmanager, grafana, prometheus, runbooks
from dashboards.alerts.alert import Alert, AlertKind, Comparison, Condition, Recording, Severity
from dashboards.alerts.spec import ALERTS, RECORDINGS

GENERATED = Path(__file__).parent / "generated"


def files() -> dict[Path, str]:
    """Text of each file that is written from the alerts."""
    return {
        GENERATED / "prometheus-rules.yaml": prometheus.rule_file(),
        GENERATED / "prometheusrule.yaml": prometheus.rule_resource(),
        GENERATED / "alertmanager-example.yaml": alertmanager.example(),
        GENERATED / "grafana-rules.yaml": grafana.rules(),
        GENERATED / "grafana-contact-points-example.yaml": grafana.contact_points(),
        GENERATED / "grafana-policies-example.yaml": grafana.policies(),
        runbooks.FOLDER / "README.md": runbooks.index(),
    }


__all__ = [
    "ALERTS",
    "GENERATED",
    "RECORDINGS",
    "Alert",
    "AlertKind",
    "Comparison",
    "Condition",
    "Recording",
    "Severity",
    "files",
]
