"""How an engine ended, and whether that was its own doing."""

from __future__ import annotations

import signal
from dataclasses import dataclass

# Sent by an operator, a container runtime, the OOM killer: a process does not get them by itself.
_OUTSIDE_SIGNALS = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


@dataclass(frozen=True, slots=True)
class EngineDeath:
    """The end of an engine that nobody asked for."""

    cause: str  # for the log
    crashed: bool  # what it computed may be the reason; False: somebody else killed it


def engine_death(why: str, exit_status: int | None, *, killed_by_front: bool) -> EngineDeath:
    """Judges an end. `exit_status` is negative for a signal, None if there was no process.

    The front kills an engine that is frozen or talks nonsense: that counts as a crash.
    """
    if exit_status is None:
        return EngineDeath(why, crashed=True)
    if exit_status >= 0:
        return EngineDeath(f"{why}; exit status {exit_status}", crashed=True)
    number = -exit_status
    if killed_by_front and number == signal.SIGKILL:
        return EngineDeath(f"{why}; killed by the front", crashed=True)
    return EngineDeath(
        f"{why}; killed by {_signal_name(number)}",
        crashed=killed_by_front or number not in _OUTSIDE_SIGNALS,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
