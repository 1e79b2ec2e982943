"""A pool that is to grow and finds no memory: when to try again, and when to stop waiting."""

from __future__ import annotations

_REST_SECONDS = 1.0  # between two tries


class Drought:
    """Begins with the first try that finds no memory, ends with one that does."""

    def __init__(self, wait_seconds: float) -> None:
        """After `wait_seconds` it is lasting: whoever waits for the pool to grow is answered."""
        self._wait_seconds = wait_seconds
        self._began_seconds: float | None = None
        self._tried_seconds = 0.0
        self.is_resting = False  # it is too early to try again
        self.is_lasting = False

    def note_failure(self, now_seconds: float) -> None:
        """There was no memory."""
        if self._began_seconds is None:
            self._began_seconds = now_seconds
        self._tried_seconds = now_seconds
        self.is_resting = True

    def note_time(self, now_seconds: float) -> None:
        """To be told the time now and then."""
        if self._began_seconds is None:
            return
        self.is_resting = now_seconds - self._tried_seconds < _REST_SECONDS
        self.is_lasting = now_seconds - self._began_seconds >= self._wait_seconds

    def end(self) -> None:
        """There was memory, or no more is wanted."""
        self._began_seconds = None
        self.is_resting = self.is_lasting = False
