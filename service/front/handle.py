"""What the API layer holds of a live request."""

from __future__ import annotations

from collections.abc import Callable

from service.front.events import Event
from service.front.request import LiveRequest


class RequestHandle:
    """The events of one request, for one reader: Started, then Progress, then Ended.

    Whoever got a handle must call `close` when the call is over, however it ended; until
    then an unread request is the slow reader's problem, and cut in the end.
    """

    def __init__(self, request: LiveRequest, release: Callable[[LiveRequest], None]) -> None:
        """`release` is called after each event, on failure and on close; it is idempotent."""
        self._request = request
        self._release = release

    @property
    def request_id(self) -> str:
        """As in the GenerationCall."""
        return self._request.call.request_id

    @property
    def unsent_tokens(self) -> int:
        """Tokens received from the engine that no event has carried yet."""
        return self._request.unsent_tokens

    def __aiter__(self) -> RequestHandle:
        return self

    async def __anext__(self) -> Event:
        return await self.next()

    async def next(self) -> Event:
        """Waits for the next event; it carries all that has come since the last one.

        Raises the RequestError that ended the request, and StopAsyncIteration after Ended
        or `close`. Cancelling the wait loses nothing.
        """
        try:
            event = await self._request.next_event()
        finally:
            self._release(self._request)
        if event is None:
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """The client wants no more; the engine frees the blocks within a step. Idempotent."""
        self._request.close()
        self._release(self._request)
