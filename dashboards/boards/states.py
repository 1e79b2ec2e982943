"""Names and colours of numbers that stand for states."""

from __future__ import annotations

from service.telemetry.catalog import server

PRESSURE = {
    1.0: ("normal", "green"),
    2.0: ("elevated", "yellow"),
    3.0: ("high", "orange"),
    4.0: ("critical", "red"),
}

_COLORS = {
    "starting": "blue",
    "ready": "green",
    "restarting": "purple",
    "draining": "yellow",
    "failed": "red",
    "stopped": "text",
}
# As queries.code_of_state numbers them; 0 while no state is in force.
SERVER = {
    float(rank): (state, _COLORS[state])
    for rank, state in enumerate(server.STATE.labels[0].values or (), start=1)
}
