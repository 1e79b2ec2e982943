"""Keeps one engine process alive: starts it, watches it, starts the next one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import structlog

from service.config import ServeSettings
from service.config.engine import PREDECESSOR_VARIABLE, SETTINGS_VARIABLE
from service.config.engine_logs import LOGS_VARIABLE, LogSettings
from service.engine.messages import (
    FromEngine,
    IncidentReport,
    Loading,
    Predecessor,
    Ready,
    Shutdown,
    StartFailed,
    ToEngine,
)
from service.front.engine_death import EngineDeath, engine_death
from service.front.engine_process import EngineProcess
from service.front.link import EngineLink
from service.front.restart import EngineLife, RestartPolicy
from service.front.silence import SilenceWatch
from service.front.watchdog import Watchdog

ENGINE_COMMAND = (sys.executable, "-m", "service.engine")
# Past this it is killed: it holds nothing but a cache, of which it saves what it can before.
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

    def engine_died(self, death: EngineDeath) -> EngineLife:
        """The engine is gone with all that it knew; answers what it was good for."""

    def engine_restarting(self) -> None:
        """Another engine will be started."""

    def engine_failed(self, cause: str) -> None:
        """No other engine will be started."""


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
            settings.restart_patience_seconds,
        )
        self._task: asyncio.Task[None] | None = None
        self._process: EngineProcess | None = None
        self._link: EngineLink | None = None  # only while that engine is ready
        self._silence = SilenceWatch()  # of an engine that starts
        self._watchdog = Watchdog()  # of one that is ready
        self._cause: str | None = None  # of the present engine's end, where it is known before
        self._last_words: str | None = None  # of the present engine
        self._refused = False  # the present engine cannot start, and not for what it does
        self._is_ready = False  # the present engine is, or was when it died
        self._stopping = False
        self._ever_ready = False
        self.predecessor: Predecessor | None = None  # whose sizes the next engine takes over
        self.restarts = 0

    @property
    def writable(self) -> bool:
        """Whether a ready engine is there and keeps up."""
        return self._link is not None and self._link.writable

    @property
    def process_id(self) -> int | None:
        """Of the present engine."""
        process = self._process  # other threads ask, too
        return None if process is None else process.pid

    def start(self) -> None:
        """Begins to start the engine, and returns at once."""
        self._task = asyncio.create_task(self._supervise_or_fail(), name="engine supervisor")

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
            self._watchdog.stop()
            self._link.send(Shutdown())
            await asyncio.wait({self._task}, timeout=_STOP_SECONDS)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._process is not None:  # killed, and not yet reaped
            await asyncio.wait({self._process.exited})

    async def _supervise_or_fail(self) -> None:
        try:
            await self._supervise()
        except Exception as error:  # noqa: BLE001 (logged, and told to all who wait)
            # A mistake of ours. Without a supervisor nobody would start an engine, nor say so.
            self._listener.engine_failed(f"supervisor failed: {type(error).__name__}: {error}")
            _log.exception("supervisor failed")  # last: it may fail for the same reason

    async def _supervise(self) -> None:
        while True:
            death = await self._run_engine()
            if self._stopping:
                return
            life = self._listener.engine_died(death)
            if self._cause is not None and not self._ever_ready:
                _log.error("engine cannot start", cause=self._cause)
                self._listener.engine_failed(self._cause)
                return
            if self._was_kept_out(death):
                life = EngineLife.KEPT_OUT
            delay_seconds = self._policy.next_delay(time.monotonic(), life)
            if delay_seconds is None:
                what = "cannot start again" if life is EngineLife.KEPT_OUT else "died too often"
                cause = f"the engine {what}; last: {death.cause}"
                _log.error("engine given up", cause=cause, restarts=self.restarts)
                self._listener.engine_failed(cause)
                return
            self.restarts += 1
            _log.error("engine died", cause=death.cause, restart_in_seconds=delay_seconds)
            self._listener.engine_restarting()
            await asyncio.sleep(delay_seconds)

    def _was_kept_out(self, death: EngineDeath) -> bool:
        """Whether the engine could not start for what others do: have its memory, or kill it."""
        by_others = self._refused or not death.crashed
        return self._ever_ready and not self._is_ready and by_others

    async def _run_engine(self) -> EngineDeath:
        """Starts one engine, stays until it is gone and reaped, and answers how it went."""
        self._cause = self._last_words = None
        self._refused = self._is_ready = False
        try:
            link, process = await self._start_engine()
        except OSError as error:  # no memory for a process, or no descriptor for a socket
            self._refused = True
            why = f"the engine process cannot be started: {error}"
            return engine_death(why, None, killed_by_front=False)
        self._process = process
        limit_seconds = self._settings.engine_start_timeout_seconds
        self._silence.start(
            limit_seconds,
            lambda: self._kill(
                f"silent for engine_start_timeout_seconds = {limit_seconds:g} while starting"
            ),
        )
        try:
            ends: list[asyncio.Future[Any]] = [process.exited, link.closed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            # The one that came first will be followed by the other, unless something is wrong.
            await asyncio.wait(ends, timeout=_LAST_WORDS_SECONDS)
        finally:
            self._link = None
            self._silence.stop()
            self._watchdog.stop()
            link.close("the engine process ended")
            killed_by_front = self._cause is not None or not process.exited.done()
            process.kill()
            await asyncio.wait({process.exited})  # a cancellation leaves it as it is
            self._process = None
        return engine_death(
            self._cause or self._last_words or link.closed.result(),
            process.exited.result(),
            killed_by_front=killed_by_front,
        )

    async def _start_engine(self) -> tuple[EngineLink, EngineProcess]:
        """Raises OSError, and nothing is left of it then."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                link = await self._connect(ours)
            except BaseException:
                ours.close()
                raise
            try:
                return link, self._start_process(theirs)
            except BaseException:
                link.close("never connected")
                raise

    async def _connect(self, ours: socket.socket) -> EngineLink:
        ours.setblocking(False)
        link = EngineLink(
            on_message=lambda message: self._received(link, message),
            on_writable=self._listener.engine_writable,
        )
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        return link

    def _start_process(self, theirs: socket.socket) -> EngineProcess:
        told = self._settings
        logs = LogSettings(told.log_level, told.log_format, told.log_repeats)
        variables = {
            SETTINGS_VARIABLE: msgspec.json.encode(told.engine).decode(),
            LOGS_VARIABLE: msgspec.json.encode(logs).decode(),
        }
        if self.predecessor is not None:
            variables[PREDECESSOR_VARIABLE] = msgspec.json.encode(self.predecessor).decode()
        return EngineProcess(self._command, theirs.fileno(), variables)

    def _received(self, link: EngineLink, message: FromEngine) -> None:
        self._silence.heard()
        match message:
            case Loading():
                self._listener.engine_loading(message)
            case StartFailed():
                self._cause = message.message
                self._refused = True
            case Ready():
                self._ever_ready = self._is_ready = True
                self._watch_pulse()
                self._link = link
                self._listener.engine_ready(message)
            case _:
                if isinstance(message, IncidentReport) and message.incident.is_fatal:
                    self._last_words = message.incident.cause
                self._listener.engine_message(message)

    def _watch_pulse(self) -> None:
        """From now on it says nothing for as long as a step takes, but it beats."""
        self._silence.stop()
        assert self._process is not None, "only a running engine is heard"
        limit_seconds = self._settings.engine_silence_seconds
        self._watchdog.start(
            self._process.pulse,
            self._process.pid,
            limit_seconds,
            lambda: self._kill(f"frozen for engine_silence_seconds = {limit_seconds:g}"),
        )

    def _kill(self, cause: str) -> None:
        self._cause = cause
        if self._process is not None:
            self._process.kill()
