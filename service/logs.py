"""Structured logs: JSON lines for machines, coloured lines on a terminal.

Records of the standard library (grpc, asyncio) take the same form. What users wrote or
models answered is never logged; `bind_request` gives every record of a call its id, tenant and
trace.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Literal, TextIO

import structlog
from structlog.typing import Processor

from service.repeats import RepeatFilter

LogFormat = Literal["auto", "json", "console"]


def configure_logging(
    level: str = "info",
    log_format: LogFormat = "auto",
    stream: TextIO | None = None,
    repeats_per_minute: int = 0,
) -> None:
    """Sets up the logs of this process; a later call replaces an earlier one.

    `auto` is `console` when the stream (default: standard error) is a terminal.
    `repeats_per_minute`: see `RepeatFilter`; 0: everything is written.
    """
    stream = stream or sys.stderr
    if log_format == "auto":
        log_format = "console" if stream.isatty() else "json"
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Processor]
    if log_format == "json":
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        render = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    handler = logging.StreamHandler(stream)
    handler.addFilter(RepeatFilter(repeats_per_minute))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def bind_request(request_id: str, tenant: str, trace_ids: Mapping[str, str]) -> None:
    """Puts what names a call into every further record of the current task."""
    structlog.contextvars.bind_contextvars(request_id=request_id, tenant=tenant, **trace_ids)
