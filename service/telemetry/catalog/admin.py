"""What operators order over the admin port, and what of it is in force."""

from __future__ import annotations

from service.telemetry.catalog.metric import Kind, Label, Metric

ACTIONS = Metric(
    name="plimsoll_admin_actions_total",
    kind=Kind.COUNTER,
    help="Orders of operators to change something, counted as they are taken up, whatever comes "
    "of them. Those that are not valid or not allowed are not counted.",
    labels=(
        Label("action", ("set_memory_utilization", "flush", "drain", "resume", "inject_faults")),
    ),
)
MEMORY_UTILIZATION = Metric(
    name="plimsoll_memory_utilization_ratio",
    kind=Kind.GAUGE,
    unit="ratio",
    help="Share of the most blocks the KV pool can have that it has now, from 0 to 1: what "
    "SetMemoryUtilization ordered, less what the governor took.",
)

METRICS = (ACTIONS, MEMORY_UTILIZATION)
