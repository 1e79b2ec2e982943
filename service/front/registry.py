"""The requests that count: who is live, who waits, and whether there is room for more."""

from __future__ import annotations

import asyncio

from service.front.events import DuplicateRequestId, QueueFull
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
        self._waiting: set[LiveRequest] = set()
        self._hint = RetryHint(retry_hint_max_seconds)
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request: LiveRequest) -> bool:
        return self._live.get(_key(request)) is request

    @property
    def waiting(self) -> int:
        """Live requests that were never in a batch."""
        return len(self._waiting)

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

    def check_room(self, tenant: str, request_id: str) -> None:
        """Raises DuplicateRequestId or QueueFull."""
        if (tenant, request_id) in self._live:
            raise DuplicateRequestId(request_id)
        limits = (
            (self.waiting, self._max_waiting_requests),
            (len(self), self._max_live_requests),
        )
        for count, limit in limits:
            if count >= limit:
                raise QueueFull(count, limit, self.suggested_retry_seconds)

    def add(self, request: LiveRequest) -> None:
        """Counts a new request, as waiting."""
        self._live[_key(request)] = request
        self._waiting.add(request)
        self.empty.clear()

    def note_scheduled(self, request: LiveRequest, now_seconds: float) -> None:
        """The request entered a batch. Idempotent."""
        if request in self._waiting:
            self._waiting.remove(request)
            self._hint.admitted(now_seconds, self.waiting)

    def remove(self, request: LiveRequest) -> None:
        """Forgets a live request."""
        del self._live[_key(request)]
        self._waiting.discard(request)
        if not self._live:
            self.empty.set()


def _key(request: LiveRequest) -> Key:
    return request.call.tenant, request.call.request_id
