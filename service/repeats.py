"""Leaves out log records that repeat too often, and says how many."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

WINDOW_SECONDS = 60.0
# Messages of other libraries may hold numbers, so that no two are alike: the table is bounded,
# and what finds no place in it is written.
MAX_KINDS = 1000
# The one line of each request is the account of the server, however many there are.
ACCOUNTS = frozenset({"request ended"})
_TIME_FIELD = "timestamp"

_Kind = tuple[str, str, int, str]  # logger, event, level; of errors also all facts


@dataclass(slots=True)
class _Window:
    began_seconds: float
    written: int = 0
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Lets `limit` records of a kind through a minute; the next one tells how many it left out.

    A kind is a logger, an event and a level. Errors are of one kind only if they agree in all
    facts, so none that says something new is lost; ends of requests are never left out.
    """

    left_out: ClassVar[int] = 0  # by all filters of this process: logs may be set up again
    _lock: ClassVar[threading.Lock] = threading.Lock()  # records come from any thread

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit` 0: everything is written. `clock` in seconds."""
        super().__init__()
        self._limit = limit
        self._clock = clock
        self._windows: dict[_Kind, _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if self._limit == 0:
            return True
        kind = _kind(record)
        if kind[1] in ACCOUNTS:
            return True
        with self._lock:
            now_seconds = self._clock()
            window = self._windows.get(kind)
            if window is None or now_seconds - window.began_seconds >= WINDOW_SECONDS:
                self._forget_quiet(now_seconds)
                if window is None and len(self._windows) >= MAX_KINDS:
                    return True
                left_out = 0 if window is None else window.left_out
                window = self._windows[kind] = _Window(now_seconds)
                if left_out:
                    _tell(record, left_out)
            if window.written >= self._limit:
                window.left_out += 1
                RepeatFilter.left_out += 1
                return False
            window.written += 1
            return True

    def _forget_quiet(self, now_seconds: float) -> None:
        """Kinds whose minute is over and that owe no number."""
        self._windows = {
            kind: window
            for kind, window in self._windows.items()
            if window.left_out or now_seconds - window.began_seconds < WINDOW_SECONDS
        }


def _kind(record: logging.LogRecord) -> _Kind:
    if not isinstance(record.msg, dict):
        return record.name, _text(record), record.levelno, ""
    facts = ""
    if record.levelno >= logging.ERROR:
        facts = repr(sorted((k, repr(v)) for k, v in record.msg.items() if k != _TIME_FIELD))
    return record.name, str(record.msg.get("event")), record.levelno, facts


def _text(record: logging.LogRecord) -> str:
    """The message; of a record whose arguments do not fit, what it was to be made of.

    A mistake of another library must not be raised where it logs. The handler tells of it when
    it cannot format the record.
    """
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 (arguments may raise anything when they are formatted)
        return record.msg if isinstance(record.msg, str) else str(type(record.msg))


def _tell(record: logging.LogRecord, left_out: int) -> None:
    if isinstance(record.msg, dict):
        record.msg["suppressed"] = left_out
    else:
        record.msg = f"{_text(record)} (suppressed: {left_out})"
        record.args = ()
