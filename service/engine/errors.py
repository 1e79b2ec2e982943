"""Errors that cross module borders inside the engine process."""

from __future__ import annotations


class StartError(Exception):
    """The engine cannot serve this model with these settings on this machine.

    The message is for the person who started it: it names the setting or the file, its
    value, and what would be possible. The engine tells it to the front and exits.
    """
