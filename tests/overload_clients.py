"""Clients that measure a server's capacity, and that ask for more than it."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from live_server import LiveServer

from service.api.gen.plimsoll.v1 import (
    engine_admin_pb2,
    engine_admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)

TENANT_KEY = "x-tenant-id"
OUTPUT_TOKENS = 32
MIB = 1024**2
_numbers = itertools.count()


@dataclass(slots=True)
class Outcome:
    """How one call ended, in the clients' eyes. Seconds are from the moment it was sent."""

    tenant: str
    code: str  # "OK" or the name of the status
    reason: str = ""
    has_hint: bool = False
    first_token_seconds: float | None = None
    seconds: float = 0.0
    phase_tokens: int = 0  # that came before the phase ended


@dataclass(slots=True)
class Load:
    """What the clients saw in a phase of `seconds`."""

    seconds: float
    outcomes: list[Outcome] = field(default_factory=list)
    front_bytes: list[int] = field(default_factory=list)  # resident, every 2 s
    waiting: list[int] = field(default_factory=list)  # requests, at the same times

    @property
    def goodput(self) -> float:
        """Requests a second that were completed within their deadline, as far as in the phase.

        What of an answer came later is left out token by token: clients that began together end
        together, and whole answers would be off by up to one for each of them.
        """
        tokens = sum(o.phase_tokens for o in self.outcomes if o.code == "OK")
        return tokens / OUTPUT_TOKENS / self.seconds

    @property
    def offered(self) -> float:
        """Requests a second that were sent."""
        return len(self.outcomes) / self.seconds

    @property
    def begun(self) -> list[float]:
        """Seconds to the first token, of those that got one."""
        return [o.first_token_seconds for o in self.outcomes if o.first_token_seconds is not None]

    @property
    def refused(self) -> list[Outcome]:
        """Those that the server refused for load."""
        return [o for o in self.outcomes if o.code == "RESOURCE_EXHAUSTED"]

    @property
    def endings(self) -> Counter[str]:
        """How many ended in which way."""
        return Counter(f"{o.code} {o.reason}".strip() for o in self.outcomes)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the others lie; not a number when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def one_call(
    stub: inference_pb2_grpc.InferenceServiceStub,
    tenant: str,
    deadline_seconds: float | None,
    rng: random.Random,
    until: float = math.inf,
) -> Outcome:
    """A short prompt that no cache knows, and its answer; the phase is over at `until`."""
    words = " ".join(str(rng.randrange(1000)) for _ in range(4))
    request = inference_pb2.GenerateStreamRequest(text=f"{next(_numbers)} Tell me about {words}")
    request.options.stopping.max_tokens = OUTPUT_TOKENS
    request.options.stopping.ignore_eos = True
    request.options.output.token_ids = True
    began = time.monotonic()
    outcome = Outcome(tenant, "OK")
    try:
        call = stub.GenerateStream(
            request, timeout=deadline_seconds, metadata=((TENANT_KEY, tenant),)
        )
        async for answer in call:
            if answer.HasField("deltas"):
                now = time.monotonic()
                if outcome.first_token_seconds is None:
                    outcome.first_token_seconds = now - began
                if now < until:
                    outcome.phase_tokens += sum(len(d.token_ids) for d in answer.deltas.deltas)
    except grpc.aio.AioRpcError as error:
        outcome.code = error.code().name
        _add_details(outcome, error)
    outcome.seconds = time.monotonic() - began
    return outcome


def _add_details(outcome: Outcome, error: grpc.aio.AioRpcError) -> None:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    if status is None:
        return
    info, hint = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info):
            outcome.reason = info.reason
        elif detail.Unpack(hint):
            outcome.has_hint = hint.retry_delay.ToNanoseconds() > 0


async def closed_loop(address: str, clients: int, seconds: float, deadline_seconds: float) -> Load:
    """As many clients, each of which sends its next request when the last one has ended.

    The server is not told the deadline, so that it refuses nobody; late answers count as such.
    """
    load = Load(seconds)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        until = time.monotonic() + seconds

        async def client(number: int) -> None:
            rng = random.Random(number)
            while time.monotonic() < until:
                outcome = await one_call(stub, f"tenant-{number}", None, rng, until)
                if outcome.seconds > deadline_seconds:
                    outcome.code = "LATE"
                load.outcomes.append(outcome)

        await asyncio.gather(*map(client, range(clients)))
    return load


async def open_loop(
    server: LiveServer,
    rate: float,
    seconds: float,
    deadline_seconds: float,
    tenants: int,
) -> Load:
    """Poisson arrivals, whatever becomes of them."""
    load = Load(seconds)
    rng = random.Random(0)
    calls: list[asyncio.Task[Outcome]] = []
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        began = now = time.monotonic()
        until = began + seconds
        watching = asyncio.create_task(_watch(server, load))
        due = began
        while now < until:
            tenant = f"tenant-{rng.randrange(tenants)}"
            call = one_call(stub, tenant, deadline_seconds, rng, until)
            calls.append(asyncio.create_task(call))
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
        load.outcomes = await asyncio.gather(*calls)
        watching.cancel()
    return load


async def _watch(server: LiveServer, load: Load) -> None:
    async with grpc.aio.insecure_channel(server.admin_address) as channel:
        stub = engine_admin_pb2_grpc.EngineAdminServiceStub(channel)
        while True:
            stats = await stub.GetStats(engine_admin_pb2.GetStatsRequest())
            load.front_bytes.append(server.front.memory_info().rss)
            load.waiting.append(stats.waiting_requests)
            await asyncio.sleep(2.0)


def capacity(
    address: str, clients: Sequence[int], seconds: float, deadline_seconds: float
) -> tuple[int, Load]:
    """The number of clients that gets most done in time, and what it gets."""
    loads = {n: asyncio.run(closed_loop(address, n, seconds, deadline_seconds)) for n in clients}
    for n, load in loads.items():
        print(f"alone, {n:3} clients: {load.goodput:6.2f} requests/s   {dict(load.endings)}")
    best = max(loads, key=lambda n: loads[n].goodput)
    return best, loads[best]


def describe(load: Load, deadline_seconds: float, alone: float) -> str:
    """The table of an overload."""
    refusals = [o.seconds for o in load.refused]
    by_tenant = Counter(o.tenant for o in load.outcomes if o.code == "OK")
    return "\n".join(
        (
            f"offered      {load.offered:7.2f} requests/s, {load.offered / alone:.1f} x capacity",
            f"goodput      {load.goodput:7.2f} requests/s, {load.goodput / alone:.2f} x capacity",
            f"first token  p50 {percentile(load.begun, 0.5):.2f} s, "
            f"p99 {percentile(load.begun, 0.99):.2f} s of {deadline_seconds:g} s",
            f"refusals     {len(refusals)}, {sum(o.has_hint for o in load.refused)} with a hint; "
            f"p50 {1000 * percentile(refusals, 0.5):.0f} ms, "
            f"p99 {1000 * percentile(refusals, 0.99):.0f} ms",
            f"tenants      {min(by_tenant.values(), default=0)} to "
            f"{max(by_tenant.values(), default=0)} completed each",
            f"front        {load.front_bytes[0] / MIB:.0f} to "
            f"{max(load.front_bytes) / MIB:.0f} MiB, "
            f"median {statistics.median(load.front_bytes) / MIB:.0f}",
            f"waiting      {max(load.waiting)} at most",
            f"endings      {dict(load.endings)}",
        )
    )
