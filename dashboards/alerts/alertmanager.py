"""An example of how Alertmanager tells of the alerts, and which of them mute which.

One that is muted still mutes. So no alert may mute one that mutes it in turn: facts mute what
comes before them, critical alerts mute those that are not, and nothing mutes a critical fact but
a worse one.
"""

from __future__ import annotations

from dashboards.alerts import fact_alerts
from dashboards.alerts.alert import Alert, AlertKind, Severity
from dashboards.alerts.text import document

# What tells one server from another, whether or not it is a pod.
_SAME_SERVER = ["namespace", "pod", "instance"]

_DAY_TEAM, _ON_CALL, _NOBODY = "day-team", "on-call", "nobody"


def example() -> str:
    """For Alertmanager: to be merged into what there is."""
    return document(
        {
            "route": {
                "receiver": _DAY_TEAM,
                "group_by": ["namespace", "pod", "instance"],
                "group_wait": "5s",
                "group_interval": "30s",
                "repeat_interval": "4h",
                "routes": [
                    {
                        "receiver": _ON_CALL,
                        "matchers": [f'severity="{Severity.CRITICAL}"'],
                        "group_wait": "0s",
                    },
                    {"receiver": _NOBODY, "matchers": [f'severity="{Severity.INFO}"']},
                ],
            },
            "inhibit_rules": _inhibitions(),
            "receivers": [
                {"name": _DAY_TEAM, "webhook_configs": [{"url": "http://127.0.0.1:9095/day"}]},
                {"name": _ON_CALL, "webhook_configs": [{"url": "http://127.0.0.1:9095/page"}]},
                {"name": _NOBODY},
            ],
        },
        "An example: put your own receivers here. The inhibition rules are worth keeping.",
    )


def _inhibitions() -> list[dict[str, object]]:
    # Not the restart after it: that fires for ten minutes over a server that has begun anew, and
    # its critical precursors have to reach somebody when it is likeliest to run out again.
    ended = (fact_alerts.OUT_OF_MEMORY, fact_alerts.REQUEST_LOST)
    names = "|".join(alert.name for alert in ended)
    return [
        _mutes([f'alertname=~"{names}"'], [f'kind="{AlertKind.PRECURSOR}"']),
        _mutes(
            [
                f'severity="{Severity.CRITICAL}"',
                f'kind=~"{AlertKind.PRECURSOR}|{AlertKind.FACT}"',
            ],
            [
                f'severity=~"{Severity.WARNING}|{Severity.INFO}"',
                f'kind=~"{AlertKind.PRECURSOR}|{AlertKind.SYMPTOM}"',
            ],
        ),
        _worse(fact_alerts.REQUEST_LOST, fact_alerts.OUT_OF_MEMORY),
        _worse(fact_alerts.ENGINE_CRASH_LOOP, fact_alerts.ENGINE_RESTARTED),
    ]


def _worse(worse: Alert, alert: Alert) -> dict[str, object]:
    return _mutes([f'alertname="{worse.name}"'], [f'alertname="{alert.name}"'])


def _mutes(sources: list[str], targets: list[str]) -> dict[str, object]:
    return {"source_matchers": sources, "target_matchers": targets, "equal": _SAME_SERVER}
