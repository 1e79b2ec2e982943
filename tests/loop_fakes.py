"""An event loop that knows one timer, for tests that let time pass by hand."""

from __future__ import annotations

from typing import Any


class FakeLoop:
    """Keeps the one timer that is set; `tick` fires it."""

    def __init__(self) -> None:
        self.delay_seconds: float | None = None
        self._callback: Any = None

    def call_later(self, delay_seconds: float, callback: Any) -> Any:
        assert self.delay_seconds is None, "one timer is enough"
        self.delay_seconds, self._callback = delay_seconds, callback
        return self

    def cancel(self) -> None:
        self.delay_seconds = None

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.delay_seconds is not None, "no timer is set"
            self.delay_seconds = None
            self._callback()
