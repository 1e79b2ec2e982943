"""What the engine asks of the operating system for its own process."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


class ParentGone(Exception):
    """The front died before the engine could tie its life to it."""


def die_with_parent() -> None:
    """Lets the kernel kill this process when its parent dies (Linux, prctl(2)).

    To the kernel the parent is the thread that forked. A parent that died before this call is
    noticed too: its end of the socket is closed.

    Raises ParentGone if the parent died meanwhile, OSError if the kernel refuses.
    """
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        raise ParentGone


def leave_signals_to_parent() -> None:
    """Ignores SIGINT and SIGTERM, which a terminal or a kubelet sends to the whole group.

    The front decides when the engine ends: it must drain first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
