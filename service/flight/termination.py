"""The cause of a server's end, where Kubernetes looks for it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

# Kubernetes cuts what is longer, at either end of a character.
LIMIT_BYTES = 4096

_log = structlog.get_logger(__name__)


def write_termination_log(path: Path, cause: str) -> None:
    """Writes the cause into a file that is there; makes none. A failure is logged, not raised."""
    try:
        # A pipe without a reader must not make us wait.
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.ftruncate(descriptor, 0)
                file.write(shortened(cause))
    except FileNotFoundError:
        return
    except OSError as error:
        _log.error("termination log cannot be written", path=str(path), cause=str(error))


def shortened(text: str) -> bytes:
    """UTF-8 of at most `LIMIT_BYTES`, cut between characters, with a mark where it is cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= LIMIT_BYTES:
        return data
    mark = " …".encode()
    head = data[: LIMIT_BYTES - len(mark)]
    return head.decode("utf-8", "ignore").encode() + mark
