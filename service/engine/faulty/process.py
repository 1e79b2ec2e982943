"""Ways in which a process stops serving."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NoReturn

_SIGNALLED = 128  # what shells add to the number of a signal
_DAY_SECONDS = 86_400.0


def end_process(signal_number: int, status: int) -> NoReturn:
    """Ends this process by a signal, or with a status where the signal is 0.

    Its own habits do not protect it: a signal that it ignores or blocks, or that ends nobody, ends
    it all the same, if need be by an exit with the status that shells give to such a death. One
    that stops a process leaves it standing.
    """
    if signal_number == 0:
        os._exit(status)
    # Nobody can set what these do: two by POSIX, and two more that the C library keeps for itself.
    with contextlib.suppress(OSError):
        signal.signal(signal_number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal_number])
    os.kill(os.getpid(), signal_number)
    os._exit(_SIGNALLED + signal_number)


def stand_still() -> NoReturn:
    """Does nothing any more."""
    while True:
        time.sleep(_DAY_SECONDS)
