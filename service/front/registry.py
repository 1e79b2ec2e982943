"""The requests that count: who is live, who waits, and whether there is room for more."""

from __future__ import annotations

import asyncio

from service.front.events import DuplicateRequestId, QueueFull
from service.front.forecast import Demand
from service.front.occupancy import Occupancy
from service.front.request import LiveRequest
from service.front.retry_hint import RetryHint

Key = tuple[str, str]  # tenant and request id: a tenant cannot probe for the ids of another


class Registry:
    """A request is live until its reader has taken the end, left, or been cut."""

    def __init__(
        self, max_live_requests: int, max_waiting_requests: int, retry_hint_max_seconds: float
    ) -> None:
        self._max_live_requests = max_live_requests
        self._max_waiting_requests = max_waiting_requests
        self._live: dict[Key, LiveRequest] = {}
        self._hint = RetryHint(retry_hint_max_seconds)
        self.occupancy: Occupancy[LiveRequest] = Occupancy()
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request: LiveRequest) -> bool:
        return self._live.get(_key(request)) is request

    @property
    def waiting(self) -> int:
        """Live requests that were never in a batch."""
        return len(self.occupancy.waiting)

    @property
    def suggested_retry_seconds(self) -> float:
        """When a client that is refused now should come back."""
        return self._hint.seconds(self.waiting)

    def all(self) -> list[LiveRequest]:
        """All live requests, oldest first."""
        return list(self._live.values())

    def find(self, tenant: str, request_id: str) -> LiveRequest | None:
        """A live request of the tenant."""
        return self._live.get((tenant, request_id))

    def check_id(self, tenant: str, request_id: str) -> None:
        """Raises DuplicateRequestId."""
        if (tenant, request_id) in self._live:
            raise DuplicateRequestId(request_id)

    @property
    def overflow(self) -> QueueFull | None:
        """Why there is no room for one more; None: there is."""
        limits = (
            (self.waiting, self._max_waiting_requests),
            (len(self), self._max_live_requests),
        )
        for count, limit in limits:
            if count >= limit:
                return QueueFull(count, limit, self.suggested_retry_seconds)
        return None

    def add(self, request: LiveRequest, demand: Demand) -> None:
        """Counts a new request, as waiting."""
        self._live[_key(request)] = request
        self.occupancy.arrived(request, request.call.tenant, request.call.priority, demand)
        self.empty.clear()

    def note_progress(self, request: LiveRequest, now_seconds: float) -> bool:
        """Follows a request into the batch and out of it. True: it entered just now."""
        entered = (request.scheduled or request.over) and self.occupancy.began(request)
        if entered:
            self._hint.admitted(now_seconds, self.waiting)
        if request.account.first_token_seconds is not None:
            self.occupancy.spoke(request)
        if request.over:
            self.occupancy.left(request)
        return entered

    def remove(self, request: LiveRequest) -> None:
        """Forgets a live request."""
        del self._live[_key(request)]
        self.occupancy.left(request)
        if not self._live:
            self.empty.set()


def _key(request: LiveRequest) -> Key:
    return request.call.tenant, request.call.request_id
