"""What users notice: it says that something is wrong, and nothing of when memory ends."""

from __future__ import annotations

from dashboards.alerts.alert import Alert, AlertKind, Comparison, Condition, Severity
from dashboards.boards.uids import LATENCY, OVERVIEW
from service.telemetry.catalog import requests, server

_MINUTE = 60


def _token_gap_p99(offset: str = "") -> str:
    return f"histogram_quantile(0.99, rate({requests.TOKEN_GAP.name}_bucket[1m]{offset}))"


_NOW, _EARLIER = _token_gap_p99(), _token_gap_p99(" offset 1h")

REFUSALS = Alert(
    name="PlimsollRefusalsFrequent",
    summary="Requests are refused for want of room",
    description="{{ $value | humanizePercentage }} of all requests are refused, since the queue "
    "is full or they would be too late.",
    condition=Condition(
        query="sum without (reason) "
        f'(rate({requests.REFUSED.name}{{reason=~"queue_full|deadline_unreachable"}}[2m]))'
        f" / clamp_min(sum without (reason) (rate({requests.REFUSED.name}[2m]))"
        f" + rate({requests.ADMITTED.name}[2m]), 1e-9)",
        comparison=Comparison.ABOVE,
        threshold=0.05,
        unit="ratio",
    ),
    for_seconds=_MINUTE,
    severity=Severity.WARNING,
    kind=AlertKind.SYMPTOM,
    dashboard=OVERVIEW,
    panel="Requests refused",
)
QUEUE_GROWTH = Alert(
    name="PlimsollQueueGrows",
    summary="More requests come than are served",
    description="The queue grows by {{ $value | humanize }} requests a second and is longer than "
    "twice what runs.",
    condition=Condition(
        query=f'sum without (state) (deriv({requests.LIVE.name}{{state="waiting"}}[2m]))',
        comparison=Comparison.ABOVE,
        threshold=0.01,
        unit="requests per second",
    ),
    guards=(
        Condition(
            query=f'sum without (state) ({requests.LIVE.name}{{state="waiting"}}) / '
            f'clamp_min(sum without (state) ({requests.LIVE.name}{{state="running"}}), 1)',
            comparison=Comparison.ABOVE,
            threshold=2,
            unit="ratio",
        ),
    ),
    for_seconds=_MINUTE,
    severity=Severity.WARNING,
    kind=AlertKind.SYMPTOM,
    dashboard=OVERVIEW,
    panel="Live requests",
)
# Of a server without a past of an hour, or with nobody to serve then, the ratio is 1.
TOKEN_GAP_SPIKE = Alert(
    name="PlimsollInterTokenLatencySpike",
    summary="Tokens come much more slowly than an hour ago",
    description="The 99th percentile of the time between two tokens is "
    "{{ $value | humanize }} times that of an hour ago.",
    condition=Condition(
        query=f"{_NOW} / (({_EARLIER}) > 0 or {_NOW})",
        comparison=Comparison.ABOVE,
        threshold=3,
        unit="ratio",
    ),
    for_seconds=_MINUTE,
    severity=Severity.WARNING,
    kind=AlertKind.SYMPTOM,
    dashboard=LATENCY,
    panel="Inter-token latency",
)
LOOP_LAG = Alert(
    name="PlimsollEventLoopLag",
    summary="The server's event loop is late",
    description="The 99th percentile of its delay is {{ $value | humanizeDuration }}: all streams "
    "wait that long.",
    condition=Condition(
        query=f"histogram_quantile(0.99, rate({server.LOOP_LAG.name}_bucket[2m]))",
        comparison=Comparison.ABOVE,
        threshold=0.25,
        unit="seconds",
    ),
    for_seconds=_MINUTE,
    severity=Severity.WARNING,
    kind=AlertKind.SYMPTOM,
    dashboard=LATENCY,
    panel="Event loop lag p99",
)
SLOW_STREAMS = Alert(
    name="PlimsollStreamsReadSlowly",
    summary="Clients read their streams too slowly",
    description="Output waits for the client in {{ $value | humanizePercentage }} of the live "
    "requests.",
    condition=Condition(
        query=f"{requests.SLOW_STREAMS.name} / "
        f"clamp_min(sum without (state) ({requests.LIVE.name}), 1)",
        comparison=Comparison.ABOVE,
        threshold=0.5,
        unit="ratio",
    ),
    for_seconds=2 * _MINUTE,
    severity=Severity.INFO,
    kind=AlertKind.SYMPTOM,
    dashboard=OVERVIEW,
    panel="Live requests",
)

ALERTS = (REFUSALS, QUEUE_GROWTH, TOKEN_GAP_SPIKE, LOOP_LAG, SLOW_STREAMS)
