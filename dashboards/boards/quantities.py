"""Quantities that several dashboards show, defined once."""

from __future__ import annotations

from dashboards.boards.panels import Limits
from dashboards.boards.queries import (
    SERVER,
    gauge,
    highest,
    least_of,
    lowest,
    rate,
    share,
    total,
)
from service.telemetry.catalog import Metric, cache, memory, requests

# Ends that the server, not its client, is to blame for.
FAILURES = (
    *("deadline_passed", "deadline_unreachable", "queue_full", "draining", "device_exhausted"),
    *("model_failed", "engine_lost", "engine_crashed"),
)

FULL_POOL = Limits("green", ((0.7, "yellow"), (0.9, "red")))
LITTLE_LEFT = Limits("red", ((0.03, "orange"), (0.08, "green")))
TIME_LEFT_SECONDS = Limits("red", ((60, "orange"), (300, "yellow"), (600, "green")))
NOT_IN_SIGHT_SECONDS = 86400.0
# The most that a line of it shows.
DRAWN_SECONDS = 3600
TIME_LEFT_NAMES = {NOT_IN_SIGHT_SECONDS: ("not in sight", "green")}


def kv_usage() -> str:
    """Of the KV pool, the share that nobody else can have, by server."""
    held = total(gauge(cache.BLOCKS, state=("active", "reserved", "kept")), SERVER)
    return share(held, total(gauge(cache.CAPACITY), SERVER))


def headroom() -> str:
    """Of the device's memory, the share that a step can still get, by server."""
    return share(lowest(gauge(memory.HEADROOM), SERVER), highest(gauge(memory.CAPACITY), SERVER))


def time_left() -> str:
    """Seconds to the end of KV pool or device, whichever comes first, by server."""
    return least_of((gauge(memory.KV_EXHAUSTION), gauge(memory.DEVICE_EXHAUSTION)), SERVER)


def drawn_time_left(metric: Metric) -> str:
    """Seconds to an end by server, as a line to draw: an hour and more lie at its top, or the few
    minutes that matter could not be seen beside a day."""
    return f"clamp_max({lowest(gauge(metric), SERVER)}, {DRAWN_SECONDS})"


def waiting() -> str:
    """Requests that were never in a batch, by server."""
    return total(gauge(requests.LIVE, state="waiting"), SERVER)


def per_second(metric: Metric, *by: str) -> str:
    """Growth of a counter per second over all servers."""
    return total(rate(metric), by)
