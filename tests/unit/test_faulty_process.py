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
    import signal
    from service.engine.faulty.process import end_process
    from service.engine.process import leave_signals_to_parent
    leave_signals_to_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
    try:
        end_process({signal}, {status})
    finally:
        print("it went on")
    """
)


def end(
    signal_number: int, status: int = 1, blocked: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    program = _PROGRAM.format(signal=signal_number, status=status, blocked=[*map(int, blocked)])
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, 40]
)
def test_a_signal_ends_it_though_it_ignores_it(number: int) -> None:
    ended = end(number)
    assert ended.returncode == -number
    assert ended.stdout == ""


def test_a_signal_ends_it_though_it_blocks_it() -> None:
    ended = end(signal.SIGTERM, blocked=(signal.SIGTERM,))
    assert ended.returncode == -signal.SIGTERM
    assert ended.stdout == ""


@pytest.mark.parametrize("number", [32, 33])
def test_a_signal_that_the_c_library_keeps_ends_it_one_way_or_the_other(number: int) -> None:
    ended = end(number)  # what the parent made of the signal is inherited, and not to be changed
    assert ended.returncode in (-number, 128 + number)
    assert ended.stdout == ""


def test_a_signal_that_ends_nobody_is_followed_by_an_exit() -> None:
    ended = end(signal.SIGWINCH)
    assert ended.returncode == 128 + signal.SIGWINCH
    assert ended.stdout == ""


def test_without_a_signal_it_exits_with_the_status() -> None:
    ended = end(0, status=7)
    assert ended.returncode == 7
    assert ended.stdout == ""  # at once: nothing is tidied up
