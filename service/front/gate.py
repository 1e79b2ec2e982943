"""Refuses requests whose deadline cannot be met, at the door and while they wait.

Work on a request that ends too late is lost, and makes the others late: without a gate an
overloaded server completes nothing at all.
"""

from __future__ import annotations

from service.config import ServeSettings
from service.front.deadlines import Deadlines
from service.front.events import DeadlineUnreachable
from service.front.forecast import Demand
from service.front.occupancy import Occupancy
from service.front.request import LiveRequest

_LOOK_SECONDS = 0.2  # between two looks at those that wait
_MIN_RETRY_SECONDS = 0.1


class DeadlineGate:
    """The policy; `Deadlines` has the figures, `Occupancy` knows who is there."""

    def __init__(
        self,
        settings: ServeSettings,
        deadlines: Deadlines,
        occupancy: Occupancy[LiveRequest],
    ) -> None:
        self._is_on = settings.refuse_unreachable_deadlines
        self._margin_share = settings.deadline_margin_share
        self._retry_max_seconds = settings.retry_hint_max_seconds
        self._deadlines = deadlines
        self._occupancy = occupancy
        self._looked_seconds = 0.0

    def check(
        self,
        tenant: str,
        priority: int,
        demand: Demand,
        deadline_seconds: float,
        now_seconds: float,
    ) -> None:
        """Raises DeadlineUnreachable for a newcomer that would be too late.

        A tenant with its share of the sequences leaves a margin twice as wide. What lies
        between the two margins is for those with less: they find room however many come from
        others.
        """
        if not self._is_on:
            return
        load = self._occupancy.load_before(
            self._deadlines.slots, tenant, priority, demand.sequences
        )
        forecast_seconds = self._deadlines.seconds(demand, load, now_seconds)
        has_little = self._occupancy.is_below_share(tenant, demand.sequences)
        margin = self._margin_share * (1 if has_little else 2)
        remaining_seconds = deadline_seconds - now_seconds
        if forecast_seconds > remaining_seconds * (1 - margin):
            raise self._refusal(forecast_seconds, remaining_seconds)

    def hopeless(self, now_seconds: float) -> list[tuple[LiveRequest, DeadlineUnreachable]]:
        """Those that wait and would be too late even if they began right now.

        Empty, too, when the last look was a moment ago.
        """
        if not self._is_on or now_seconds - self._looked_seconds < _LOOK_SECONDS:
            return []
        self._looked_seconds = now_seconds
        load = self._occupancy.load(self._deadlines.slots)
        found = []
        for request in self._occupancy.waiting:
            end = request.call.end_of_time(request.account.arrival_seconds)
            if not end.is_deadline:
                continue
            remaining_seconds = end.seconds - now_seconds
            demand = self._occupancy.waiting.demand(request)
            forecast_seconds = self._deadlines.seconds(demand, load, now_seconds)
            if forecast_seconds > remaining_seconds:
                found.append((request, self._refusal(forecast_seconds, remaining_seconds)))
        return found

    def _refusal(self, forecast_seconds: float, remaining_seconds: float) -> DeadlineUnreachable:
        """The hint: in as much time as it is late, as much of what is before it is done."""
        late_seconds = max(_MIN_RETRY_SECONDS, forecast_seconds - remaining_seconds)
        return DeadlineUnreachable(
            forecast_seconds=forecast_seconds,
            remaining_seconds=max(0.0, remaining_seconds),
            retry_after_seconds=min(self._retry_max_seconds, late_seconds),
        )
