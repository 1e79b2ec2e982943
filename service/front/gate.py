"""Refuses requests whose deadline cannot be met, at the door and while they wait.

Work on a request that ends too late is lost, and makes the others late: without a gate an
overloaded server completes nothing at all.
"""

from __future__ import annotations

from dataclasses import replace

from service.config import ServeSettings
from service.front.deadlines import Deadlines
from service.front.events import DeadlineUnreachable
from service.front.forecast import Demand
from service.front.occupancy import Occupancy
from service.front.request import LiveRequest

_LOOK_SECONDS = 0.2  # between two looks at those that wait
_NEAR = 0.7  # of the time allowed: from there on a forecast matters
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
        self._reserve_share = settings.tenant_reserve_share
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
    ) -> float:
        """Lets a newcomer in or raises DeadlineUnreachable. Answers the time forecast for it.

        That is 0 when nobody knows, and when it is so far from the deadline that what becomes
        of it says nothing of those that are near. An idle engine takes everybody: there it
        costs nobody anything to find out. For a tenant that has its share of the sequences
        the forecast counts more of them than there are. So when others flood the server, who
        has less still finds room.
        """
        occupancy = self._occupancy
        load = occupancy.load_before(self._deadlines.slots, tenant, priority, demand.sequences)
        has_little = occupancy.is_below_share(tenant, demand.sequences)
        reserve = 0.0 if has_little else self._reserve_share * (load.running + load.ahead)
        load = replace(load, reserve=reserve)
        forecast_seconds = self._deadlines.seconds(demand, load, now_seconds)
        cautious_seconds = forecast_seconds * self._deadlines.caution
        remaining_seconds = deadline_seconds - now_seconds
        if remaining_seconds <= 0:
            return 0.0  # it is over already, and ends as such
        allowed_seconds = remaining_seconds * (1 - self._margin_share)
        if self._is_on and cautious_seconds > allowed_seconds and not load.is_idle:
            raise self._refusal(cautious_seconds, remaining_seconds)
        return forecast_seconds if cautious_seconds > _NEAR * allowed_seconds else 0.0

    def hopeless(self, now_seconds: float) -> list[tuple[LiveRequest, DeadlineUnreachable]]:
        """Those that wait and would be too late even if they began right now.

        Empty, too, when the last look was a moment ago.
        """
        if not self._is_on or now_seconds - self._looked_seconds < _LOOK_SECONDS:
            return []
        self._looked_seconds = now_seconds
        load = self._occupancy.load(self._deadlines.slots)
        if load.is_idle:
            return []
        found = []
        for request in self._occupancy.waiting:
            end = request.call.end_of_time(request.account.arrival_seconds)
            if not end.is_deadline:
                continue
            remaining_seconds = end.seconds - now_seconds
            demand = self._occupancy.waiting.demand(request)
            forecast_seconds = self._deadlines.seconds(demand, load, now_seconds)
            forecast_seconds *= self._deadlines.caution
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
