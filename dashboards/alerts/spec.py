"""All alerts, in the groups in which they are evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dashboards.alerts import (
    blindness_alerts,
    device_alerts,
    fact_alerts,
    kv_alerts,
    serving_alerts,
)
from dashboards.alerts.alert import Alert

# A climb to the end of memory may take a minute. Grafana evaluates no more often than every 10 s.
EVALUATION_SECONDS = 5
GRAFANA_EVALUATION_SECONDS = 10
RECORDING_SECONDS = 15

RECORDINGS = device_alerts.RECORDINGS

GROUPS: Mapping[str, tuple[Alert, ...]] = MappingProxyType(
    {
        "plimsoll.device": device_alerts.ALERTS,
        "plimsoll.kv": kv_alerts.ALERTS,
        "plimsoll.serving": serving_alerts.ALERTS,
        "plimsoll.facts": fact_alerts.ALERTS,
        "plimsoll.blindness": blindness_alerts.ALERTS,
    }
)
ALERTS = tuple(alert for group in GROUPS.values() for alert in group)
