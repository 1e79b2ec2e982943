"""The engine as a child process: started, watched and killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence

from service.engine.pulse import Pulse, open_pulse


class EngineProcess:
    """A running child. `exited` is done with its exit status once it has been reaped.

    `subprocess` starts it, not the event loop: between fork and exec that runs no Python.
    A loop that does (uvloop) may meet a lock which another thread of this process, of gRPC
    or a tokenizer, held at the moment of the fork, and then hangs together with its child.

    A pidfd watches it (Linux 5.3): no signal handler, no thread, no pid that may be another
    process by now.

    The kernel kills an engine when the *thread* that started it ends (prctl(2)), so the
    event loop must stay in one thread for as long as the engine should live.
    """

    def __init__(
        self, command: Sequence[str], socket_fd: int, variables: Mapping[str, str]
    ) -> None:
        """Starts the command with a socket, a pulse, and more variables. Raises OSError."""
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        pulse_fd = open_pulse()
        try:
            self.pulse = Pulse(pulse_fd)
            self._process = subprocess.Popen(
                [*command, "--fd", str(socket_fd), "--pulse-fd", str(pulse_fd)],
                pass_fds=(socket_fd, pulse_fd),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **variables},
            )
        finally:
            os.close(pulse_fd)
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise
        loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Sends SIGKILL; without effect on a process that has ended."""
        self._process.kill()

    def _reap(self) -> None:
        status = self._process.poll()
        if status is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.exited.set_result(status)
