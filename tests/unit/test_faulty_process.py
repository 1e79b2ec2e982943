"""A process that is told to end ends, whatever it does about signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

# As the engine does: the signals of a terminal and a kubelet are the front's to handle.
_PROGRAM = textwrap.dedent(
    """
    import sys
    from service.engine.faulty.process import end_process
    from service.engine.process import leave_signals_to_parent
    leave_signals_to_parent()
    try:
        end_process({signal}, {status})
    finally:
        print("it went on")
    """
)


def end(signal_number: int, status: int = 1) -> subprocess.CompletedProcess[str]:
    program = _PROGRAM.format(signal=signal_number, status=status)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, 32, 40]
)
def test_a_signal_ends_it_though_it_ignores_it(number: int) -> None:
    ended = end(number)
    assert ended.returncode == -number
    assert ended.stdout == ""


def test_a_signal_that_ends_nobody_is_followed_by_an_exit() -> None:
    ended = end(signal.SIGWINCH)
    assert ended.returncode == 128 + signal.SIGWINCH
    assert ended.stdout == ""


def test_without_a_signal_it_exits_with_the_status() -> None:
    ended = end(0, status=7)
    assert ended.returncode == 7
    assert ended.stdout == ""  # at once: nothing is tidied up
