"""Leaves a failing store alone for a while (the circuit breaker of Nygard, Release It!)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_logger = logging.getLogger("kvcache.tiers")


class Breaker:
    """Open after a failure, for a time that doubles with every further one.

    While it is open nothing is tried. After that one attempt is let through; its outcome
    closes the breaker or opens it for longer. Thread-safe. Writes one line to the log when
    the store is lost and one when it is back, however many calls fail in between.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], float],
        first_pause_seconds: float = 0.5,
        longest_pause_seconds: float = 30.0,
    ) -> None:
        self._name = name
        self._clock = clock
        self._first_pause_seconds = first_pause_seconds
        self._longest_pause_seconds = longest_pause_seconds
        self._lock = threading.Lock()
        self._pause_seconds = 0.0  # 0: closed
        self._retry_at_seconds = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the store has failed and has not been seen to work since."""
        return self._pause_seconds > 0

    def allows(self) -> bool:
        """Whether to try; True for one caller only when a pause is over."""
        with self._lock:
            if self._pause_seconds == 0:
                return True
            if self._clock() < self._retry_at_seconds:
                return False
            self._retry_at_seconds = self._clock() + self._pause_seconds
            return True

    def would_allow(self) -> bool:
        """What `allows` would answer now; takes no turn."""
        return self._pause_seconds == 0 or self._clock() >= self._retry_at_seconds

    def succeeded(self) -> None:
        """The store did what it was asked."""
        with self._lock:
            was_open = self.is_open
            self._pause_seconds = 0.0
        if was_open:
            _logger.warning("%s tier: works again", self._name)

    def failed(self, reason: str) -> None:
        """The store did not."""
        with self._lock:
            was_open = self.is_open
            doubled = max(self._first_pause_seconds, self._pause_seconds * 2)
            self._pause_seconds = min(doubled, self._longest_pause_seconds)
            self._retry_at_seconds = self._clock() + self._pause_seconds
        if not was_open:
            _logger.warning("%s tier: fails, its blocks are misses now (%s)", self._name, reason)
