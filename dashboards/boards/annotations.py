"""Events that are drawn over all panels of a dashboard, so that causes stand next to effects.

The data source draws an event where a series is above 0, and joins neighbours to one.
"""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import AnnotationQuery

from dashboards.boards.queries import (
    SERVER,
    gauge,
    increase,
    named,
    total,
)
from dashboards.boards.variables import DATASOURCE
from service.telemetry.catalog import Metric, admin, memory, server


class EventQuery(AnnotationQuery):
    """With what the Prometheus data source reads and the builders do not know."""

    def __init__(self, name: str, color: str, expr: str, title: str, *, value_is_time: bool):
        super().__init__(name=name, datasource=DATASOURCE, icon_color=color, expr=expr)
        self.title = title
        self.value_is_time = value_is_time

    def to_json(self) -> dict[str, object]:
        return {
            **super().to_json(),
            "titleFormat": self.title,
            "useValueForTime": self.value_is_time,
        }


class Event(Builder[AnnotationQuery]):
    """Builder of an event, as the builders of dashboards want it."""

    def __init__(self, query: EventQuery):
        self._query = query

    def build(self) -> AnnotationQuery:
        return self._query


def oom_rungs() -> Event:
    """Steps that found no device memory."""
    title = f"{named()}: OOM, {{{{rung}}}}"
    return _counted("Out of memory", "red", memory.OOM_RUNGS, title, "rung")


def engine_restarts() -> Event:
    """Engines that died and were replaced."""
    return _counted("Engine restarts", "purple", server.RESTARTS, f"{named()}: engine restarted")


def server_starts() -> Event:
    """Starts of the server process, deployments among them."""
    return _dated("Server starts", "blue", server.STARTED, f"{named()}: started")


def admin_actions() -> Event:
    """What an operator, human or not, ordered."""
    title = f"{named()}: {{{{action}}}} ordered"
    return _counted("Admin actions", "yellow", admin.ACTIONS, title, "action")


def faults() -> Event:
    """Faults that were carried out on purpose."""
    return _counted("Injected faults", "orange", server.FAULT_STRIKES, f"{named()}: fault injected")


def flight_records() -> Event:
    """Evidence that a server wrote of its own trouble."""
    return _dated("Flight records", "super-light-red", server.FLIGHT_LAST, f"{named()}: record")


def usual_events() -> tuple[Event, ...]:
    """Those that explain any graph."""
    return (oom_rungs(), engine_restarts(), server_starts(), admin_actions())


def all_events() -> tuple[Event, ...]:
    """The usual ones, faults and flight records."""
    return (*usual_events(), faults(), flight_records())


def _counted(name: str, color: str, metric: Metric, title: str, *by: str) -> Event:
    expr = total(increase(metric), (*SERVER, *by))
    return Event(EventQuery(name, color, expr, title, value_is_time=False))


def _dated(name: str, color: str, metric: Metric, title: str) -> Event:
    """Of a metric whose value is the time of the event; the data source wants milliseconds."""
    return Event(EventQuery(name, color, f"1000 * {gauge(metric)}", title, value_is_time=True))
