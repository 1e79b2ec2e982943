"""The life of a serving process: ports first, then the model; on a signal, in reverse.

The ports open before the model loads, so that probes see a live process that is not ready yet.
A stop goes: not ready; refuse new requests while load balancers forget this pod; let live
requests end; close the ports; stop the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import structlog
import uvloop

from service.api.health import LIVENESS, READINESS, STARTUP, HealthServicer
from service.api.ports import BindError, Ports, open_ports
from service.config import ServeSettings
from service.engine.messages import Loading
from service.front.front import Front
from service.front.state import DrainResult, EngineFailed, FrontState
from service.telemetry.metrics import Metrics
from service.telemetry.tracing.traces import Traces

# After the drain nothing but the last status of each call is left to send.
_CLOSE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class Addresses:
    """Where a server listens, as `host:port`."""

    inference: str
    admin: str
    metrics: str


class StopSignals:
    """SIGTERM and SIGINT: the first asks for a graceful stop, the second cuts it short."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def install(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signalled)

    def remove(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def signalled(self) -> None:
        """One more signal has come."""
        if self.stop.is_set():
            self.hurry.set()
        self.stop.set()


def run(
    settings: ServeSettings,
    ready: Callable[[Addresses], None] | None = None,
    on_loading: Callable[[Loading], None] | None = None,
) -> None:
    """`serve` in an event loop of its own."""
    # The front forks only to start engines, which know nothing of gRPC: its fork handlers
    # would do no good, and say so in the log at every start. Read when gRPC initialises.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    uvloop.run(serve(settings, ready, on_loading))


async def serve(
    settings: ServeSettings,
    ready: Callable[[Addresses], None] | None = None,
    on_loading: Callable[[Loading], None] | None = None,
) -> None:
    """Serves until a signal; returns after a graceful stop.

    `ready` is called once, when the model takes requests. Raises BindError, EngineFailed when
    the engine cannot be kept alive, and what reading the model's files raises.
    """
    signals = StopSignals()
    signals.install()
    try:
        front = Front(settings, on_loading=on_loading)
        await serve_front(front, settings, signals, ready)
    finally:
        signals.remove()


async def serve_front(
    front: Front,
    settings: ServeSettings,
    signals: StopSignals,
    ready: Callable[[Addresses], None] | None = None,
) -> None:
    """As `serve`, with a front that is not started yet; stops it too."""
    ports = open_ports(front, settings, served_by=socket.gethostname())
    traces = Traces(front, settings)
    metrics = Metrics(front, settings, spans=lambda: traces.figures)
    await _start_metrics(metrics)
    traces.start()
    await ports.inference.start()
    await ports.admin.start()
    ports.health.set(LIVENESS, True)
    addresses = Addresses(ports.inference_address, ports.admin_address, metrics.address)
    _log.info("listening", **asdict(addresses))
    watcher = asyncio.create_task(_follow(front, ports.health, addresses, ready))
    try:
        await front.start()
        stop = asyncio.create_task(signals.stop.wait())
        await asyncio.wait({stop, watcher}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not watcher.done():
            await _drain(front, ports, settings, signals)
        else:
            watcher.result()  # raises: the engine has failed
    finally:
        watcher.cancel()
        await _close(front, ports)
        await traces.stop()
        await metrics.stop()


async def _start_metrics(metrics: Metrics) -> None:
    """Raises BindError."""
    try:
        await metrics.start()
    except OSError as error:
        raise BindError("metrics_port", metrics.address) from error


async def _follow(
    front: Front,
    health: HealthServicer,
    addresses: Addresses,
    ready: Callable[[Addresses], None] | None,
) -> None:
    """Keeps the health names equal to the state of the front. Raises EngineFailed."""
    async for state in front.watch_state():
        health.set(READINESS, state is FrontState.READY)
        if state is FrontState.FAILED:
            health.set(LIVENESS, False)
            raise EngineFailed(front.failure)
        if state is FrontState.READY and not health.is_serving(STARTUP):
            health.set(STARTUP, True)
            _log.info("ready", **asdict(addresses))
            if ready is not None:
                ready(addresses)


async def _drain(front: Front, ports: Ports, settings: ServeSettings, signals: StopSignals) -> None:
    """Waits until the live requests have ended and the load balancers know; or the next signal."""
    _log.info("draining", calls=len(ports.in_flight), grace_seconds=settings.grace_seconds)
    drained = asyncio.create_task(_drain_in_time(front, settings))
    hurry = asyncio.create_task(signals.hurry.wait())
    waits: set[asyncio.Future[Any]] = {drained, hurry}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if drained.done():
        result = drained.result()
        _log.info("drained", completed=result.completed, aborted=result.aborted)
    else:
        drained.cancel()
        _log.warning("drain cut short by a second signal", calls=len(ports.in_flight))
        await front.drain(0.0)  # so that clients learn why, and that another replica may help


async def _drain_in_time(front: Front, settings: ServeSettings) -> DrainResult:
    """Both clocks run from the signal on: that of live requests and that of load balancers."""
    async with asyncio.TaskGroup() as group:
        drain = group.create_task(front.drain(settings.grace_seconds))
        group.create_task(asyncio.sleep(settings.endpoint_removal_seconds))
    return drain.result()


async def _close(front: Front, ports: Ports) -> None:
    """Closes the public port, then the engine, then the admin port."""
    await ports.inference.stop(_CLOSE_SECONDS)
    # stop() returns before the handlers of the calls that it cut have ended.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ports.in_flight.wait_empty(), _CLOSE_SECONDS)
    await front.stop()
    await ports.admin.stop(_CLOSE_SECONDS)
    _log.info("stopped")
