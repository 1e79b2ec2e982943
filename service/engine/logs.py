"""Logs of the engine process, in the form of those of the front.

Made by the standard library alone: to import structlog takes as long as numpy, and streams wait
while a new engine starts.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from service.config.engine_logs import LogSettings
from service.repeats import RepeatFilter


def configure_logging(settings: LogSettings) -> None:
    """Sets up the logs of this process, on standard error, which it has from the front."""
    is_json = settings.format == "json"
    if settings.format == "auto":
        is_json = not sys.stderr.isatty()
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatFilter(settings.repeats))
    handler.setFormatter(JsonLines() if is_json else ConsoleLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())


class JsonLines(logging.Formatter):
    """A record is an object on one line, its traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": _time(record),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts)


class ConsoleLines(logging.Formatter):
    """For people; the front colours its lines, which takes what is not imported here."""

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        line = f"{_time(record)} [{level:<9}] {record.getMessage():<30} [{record.name}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
