"""Where the runbook of an alert is, and the list of all."""

from __future__ import annotations

from pathlib import Path

from dashboards.alerts.alert import Alert, AlertKind
from dashboards.alerts.spec import ALERTS

FOLDER = Path(__file__).parents[1] / "runbooks"
# Where whoever is woken can read them: set it to where your copy of the folder is.
BASE_URL = "https://runbooks.example/plimsoll/"

_INTRODUCTION = """\
# Runbooks

One page for each alert. Precursors come first, those with the longest lead before the others:
from the moment in which they may be expected to fire to that in which a step finds no device
memory (or, of the alerts on the KV pool, a sequence no block). The leads are expectations from
thresholds and `for`. A step that finds no memory is one that is tried again: only
[PlimsollRequestLostToMemory](PlimsollRequestLostToMemory.md) says that somebody lost something.

Figures of memory are those of the engine that runs. From its end until the next one is ready there
are none, and what fired on them is silent without being over:
[PlimsollEngineRestarted](PlimsollEngineRestarted.md) says so.
"""
_HEADINGS = {
    AlertKind.PRECURSOR: "Precursors: memory is about to end",
    AlertKind.SYMPTOM: "Symptoms: users notice something",
    AlertKind.FACT: "Facts: something has failed",
    AlertKind.BLINDNESS: "Blindness: nobody would see it come",
}


def url(alert: Alert) -> str:
    """Of the runbook."""
    return f"{BASE_URL}{page(alert)}"


def page(alert: Alert) -> str:
    """Name of its file."""
    return f"{alert.name}.md"


def index() -> str:
    """All runbooks by kind and lead, as Markdown."""
    parts = [_INTRODUCTION]
    for kind, heading in _HEADINGS.items():
        alerts = sorted((alert for alert in ALERTS if alert.kind is kind), key=_most_lead_first)
        rows = "".join(_row(alert) for alert in alerts)
        lead, line = ("| expected lead ", "| --- ") if kind is AlertKind.PRECURSOR else ("", "")
        parts.append(
            f"\n## {heading}\n\n{lead}| alert | severity | for | what it says |\n"
            f"{line}| --- | --- | --- | --- |\n{rows}"
        )
    return "".join(parts)


def _most_lead_first(alert: Alert) -> tuple[int, str]:
    return (0 if alert.lead is None else -alert.lead.most_seconds, alert.name)


def _row(alert: Alert) -> str:
    lead = "" if alert.lead is None else f"| {alert.lead} "
    return (
        f"{lead}| [{alert.name}]({page(alert)}) | {alert.severity} | {alert.for_seconds} s "
        f"| {alert.summary} |\n"
    )
