"""Keeps one engine process alive: starts it, watches it, starts the next one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import structlog

from service.config import ServeSettings
from service.engine.messages import (
    FromEngine,
    Loading,
    Ready,
    Shutdown,
    StartFailed,
    ToEngine,
)
from service.front.link import EngineLink
from service.front.restart import RestartPolicy

ENGINE_COMMAND = (sys.executable, "-m", "service.engine")
# An engine holds nothing worth saving: past this it is killed.
_STOP_SECONDS = 5.0
# Between the end of the stream, which carries the last words, and that of the process.
_LAST_WORDS_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class EngineListener(Protocol):
    """Who hears of the engine. All calls come on the event loop."""

    def engine_loading(self, progress: Loading) -> None:
        """The engine is starting."""

    def engine_ready(self, ready: Ready) -> None:
        """The engine takes sequences; it knows none yet."""

    def engine_message(self, message: FromEngine) -> None:
        """Anything else that a ready engine says."""

    def engine_writable(self) -> None:
        """The engine reads again after `Supervisor.writable` was false."""

    def engine_lost(self) -> None:
        """The engine is gone with all that it knew; another one will be started."""

    def engine_failed(self, cause: str) -> None:
        """The engine is gone and no other one will be started."""


class Supervisor:
    """One engine at a time; a new one starts only when the old one has been reaped."""

    def __init__(
        self,
        settings: ServeSettings,
        listener: EngineListener,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._command = command
        self._policy = RestartPolicy(
            settings.restart_delay_seconds,
            settings.restart_delay_max_seconds,
            settings.restart_limit,
            settings.restart_window_seconds,
        )
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._link: EngineLink | None = None  # only while that engine is ready
        self._start_timer: asyncio.TimerHandle | None = None
        self._start_failure: str | None = None
        self._stopping = False
        self._ever_ready = False
        self.restarts = 0

    @property
    def writable(self) -> bool:
        """Whether a ready engine is there and keeps up."""
        return self._link is not None and self._link.writable

    @property
    def process_id(self) -> int | None:
        """Of the present engine."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Begins to start the engine, and returns at once."""
        self._task = asyncio.create_task(self._supervise(), name="engine supervisor")

    def send(self, message: ToEngine) -> None:
        """Sends to a ready engine; without effect when there is none."""
        if self._link is not None:
            self._link.send(message)

    async def stop(self) -> None:
        """Stops the engine, kills it if it does not listen, and reaps it. Idempotent."""
        self._stopping = True
        if self._task is None:
            return
        if self._link is not None:
            self._link.send(Shutdown())
            await asyncio.wait({self._task}, timeout=_STOP_SECONDS)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _supervise(self) -> None:
        while True:
            cause = await self._run_engine()
            if self._stopping:
                return
            if self._start_failure is not None and not self._ever_ready:
                _log.error("engine cannot start", cause=self._start_failure)
                self._listener.engine_failed(self._start_failure)
                return
            delay_seconds = self._policy.next_delay(time.monotonic())
            if delay_seconds is None:
                _log.error("engine given up", cause=cause, restarts=self.restarts)
                self._listener.engine_failed(f"the engine died too often; last: {cause}")
                return
            self.restarts += 1
            _log.error("engine died", cause=cause, restart_in_seconds=delay_seconds)
            self._listener.engine_lost()
            await asyncio.sleep(delay_seconds)

    async def _run_engine(self) -> str:
        """Starts one engine, stays until it is gone and reaped, and answers why it went."""
        self._start_failure = None
        ours, theirs = socket.socketpair()
        with theirs:
            link = await self._connect(ours)
            try:
                process = await self._spawn(theirs)
            except OSError as error:
                link.close("never connected")
                return f"the engine process cannot be started: {error}"
            except asyncio.CancelledError:
                link.close("never connected")
                raise
        self._process = process
        exited = asyncio.create_task(process.wait())
        try:
            if self._link is None:  # a quick engine can be ready before it is known to run
                self._await_start()
            ends: list[asyncio.Future[Any]] = [exited, link.closed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            # The one that came first will be followed by the other, unless something is wrong.
            await asyncio.wait(ends, timeout=_LAST_WORDS_SECONDS)
        finally:
            self._link = None
            self._cancel_start_timer()
            link.close("the engine process ended")
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await exited
            self._process = None
        cause = self._start_failure or link.closed.result()
        return f"{cause}; {_describe_exit(process.returncode)}"

    async def _connect(self, ours: socket.socket) -> EngineLink:
        ours.setblocking(False)
        link = EngineLink(
            on_message=lambda message: self._received(link, message),
            on_writable=self._listener.engine_writable,
        )
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        return link

    async def _spawn(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            "--fd",
            str(theirs.fileno()),
            "--settings",
            msgspec.json.encode(self._settings.engine).decode(),
            pass_fds=(theirs.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
        )

    def _received(self, link: EngineLink, message: FromEngine) -> None:
        match message:
            case Loading():
                self._await_start()
                self._listener.engine_loading(message)
            case StartFailed():
                self._start_failure = message.message
            case Ready():
                self._cancel_start_timer()
                self._ever_ready = True
                self._link = link
                self._listener.engine_ready(message)
            case _:
                self._listener.engine_message(message)

    def _await_start(self) -> None:
        """(Re)arms the kill of an engine that is silent while it should be starting."""
        self._cancel_start_timer()
        self._start_timer = asyncio.get_running_loop().call_later(
            self._settings.engine_start_timeout_seconds, self._start_timed_out
        )

    def _cancel_start_timer(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None

    def _start_timed_out(self) -> None:
        limit_seconds = self._settings.engine_start_timeout_seconds
        self._start_failure = (
            f"silent for engine_start_timeout_seconds = {limit_seconds:g} while starting"
        )
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def _describe_exit(return_code: int | None) -> str:
    if return_code is None or return_code >= 0:
        return f"exit status {return_code}"
    return f"killed by {signal.Signals(-return_code).name}"
