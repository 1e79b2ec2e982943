"""The one exception that ends a command with a message instead of a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """A failure to tell the user in one line."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status
