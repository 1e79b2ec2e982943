"""A server in simulated time: the real gate, queue and forecasts over an engine of three costs."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engine_fakes import spec_of

from service.config import EngineSettings, ServeSettings
from service.engine.fair_queue import WaitingQueue
from service.engine.figures import EngineStats
from service.engine.messages import FinishReason, SamplingParams
from service.engine.request import Sequence
from service.front.accounting import Account
from service.front.call import GenerationCall
from service.front.deadlines import Deadlines
from service.front.events import DeadlineUnreachable
from service.front.gate import DeadlineGate
from service.front.occupancy import Occupancy
from service.front.step_costs import Costs

_CLIENTS = (1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40)


@dataclass(frozen=True)
class World:
    """What the engine is like, and what is asked of it."""

    costs: Costs
    slots: int = 64
    prompt_tokens: int = 20
    output_tokens: int = 32
    deadline_seconds: float = 10.0
    noise: float = 0.1  # of a step's time
    step_tokens: int = 512
    output_spread: float = 0.0  # outputs differ by up to this share

    def capacity(self, seconds: float = 100.0) -> float:
        """Requests a second that end in time with the best number of clients in a closed loop."""
        return max(closed_loop(self, clients, seconds) for clients in _CLIENTS)


@dataclass
class _Candidate:
    output_tokens: int = 0
    finish_reason: FinishReason | None = None


@dataclass(eq=False)
class Request:
    """Has what gate and forecasts ask of a LiveRequest."""

    call: GenerationCall
    account: Account
    sequence: Sequence
    will_say_tokens: int
    candidates: list[_Candidate] = field(default_factory=lambda: [_Candidate()])
    scheduled: bool = False
    left_prompt_tokens: int = 0
    forecast_seconds: float = 0.0


class Server:
    """Steps through time; `ends` tells how requests ended, by tenant."""

    def __init__(self, world: World, seed: int, **settings: Any) -> None:
        self.world = world
        self.now_seconds = 0.0
        self.ends: Counter[tuple[str, str]] = Counter()
        self.ended_at: list[tuple[float, str]] = []
        self.hints: list[float] = []
        self.longest_queue = 0
        self.slowness = 1.0  # of the machine
        self._rng = random.Random(seed)
        serve = ServeSettings(engine=EngineSettings(max_running_sequences=world.slots), **settings)
        self._max_waiting = serve.max_waiting_requests
        self.deadlines = Deadlines(serve)
        self._occupancy: Occupancy[Request] = Occupancy()
        self._gate = DeadlineGate(serve, self.deadlines, self._occupancy)  # type: ignore[arg-type]
        self._queue = WaitingQueue()
        self._requests: dict[Sequence, Request] = {}
        self._running: list[Request] = []
        self._numbers = itertools.count(1)
        self._steps = self._prefilled = self._decoded = 0
        self._busy_seconds = 0.0

    def run(self, arrivals: Iterator[tuple[float, str]], until_seconds: float) -> None:
        """Takes (time, tenant) in order of time, and works until then."""
        upcoming = next(arrivals, None)
        while self.now_seconds < until_seconds:
            while upcoming is not None and upcoming[0] <= self.now_seconds:
                self._arrive(*upcoming)
                upcoming = next(arrivals, None)
            self._leave_late()
            if not self._running and not len(self._queue):
                following = until_seconds if upcoming is None else upcoming[0]
                self.now_seconds = min(until_seconds, following)
                if upcoming is None:
                    return
                continue
            self._step()

    def run_closed(self, clients: int, until_seconds: float) -> None:
        """Works until then for clients that send the next request when one has ended."""
        while self.now_seconds < until_seconds:
            while len(self._requests) < clients:
                self._arrive(self.now_seconds, "closed loop")
            self._step()
            self._leave_late()

    def count(self, how: str, tenant: str | None = None) -> int:
        """Requests that ended so."""
        return sum(
            n for (name, end), n in self.ends.items() if end == how and tenant in (None, name)
        )

    def _arrive(self, arrival_seconds: float, tenant: str) -> None:
        world = self.world
        number = next(self._numbers)
        call = GenerationCall(
            request_id=str(number),
            prompt_ids=[0] * world.prompt_tokens,
            sampling=SamplingParams(),
            tenant=tenant,
            max_tokens=4 * world.output_tokens,
            deadline_seconds=arrival_seconds + world.deadline_seconds,
        )
        demand = self.deadlines.demand(call, 4 * world.output_tokens, self.now_seconds)
        assert call.deadline_seconds is not None
        try:
            forecast_seconds = self._gate.check(
                tenant, 0, demand, call.deadline_seconds, self.now_seconds
            )
        except DeadlineUnreachable as refusal:
            self.hints.append(refusal.retry_after_seconds)
            self._end(tenant, "refused")
            return
        spec = spec_of(
            number,
            call.prompt_ids,
            max_tokens=4 * world.output_tokens,
            tenant=tenant,
            arrival_seconds=arrival_seconds,
            expected_tokens=int(demand.output_tokens),
        )
        spread = world.output_spread
        request = Request(
            call,
            Account(arrival_seconds, world.prompt_tokens),
            Sequence(spec, number),
            round(world.output_tokens * self._rng.uniform(1 - spread, 1 + spread)),
            left_prompt_tokens=world.prompt_tokens,
            forecast_seconds=forecast_seconds,
        )
        self._occupancy.arrived(request, tenant, 0, demand)
        if len(self._occupancy.waiting) > self._max_waiting:
            giving_way = self._occupancy.waiting.gives_way(tenant, 0) or request
            self._drop(giving_way, "pushed out")
            if giving_way is request:
                return
        self._requests[request.sequence] = request
        self._queue.add(request.sequence)
        self.longest_queue = max(self.longest_queue, len(self._queue))

    def _leave_late(self) -> None:
        for request in [*self._running, *map(self._requests.__getitem__, self._queue)]:
            deadline_seconds = request.call.deadline_seconds
            if deadline_seconds is not None and deadline_seconds <= self.now_seconds:
                self._drop(request, "late" if request.scheduled else "late in the queue")

    def _drop(self, request: Request, how: str) -> None:
        if request in self._running:
            self._running.remove(request)
        elif self._requests.get(request.sequence) is request:
            self._queue.give_up(request.sequence)
        self._requests.pop(request.sequence, None)
        self._occupancy.left(request)
        self.deadlines.note_end(request, self.now_seconds)  # type: ignore[arg-type]
        self._end(request.call.tenant, how)

    def _end(self, tenant: str, how: str) -> None:
        self.ends[tenant, how] += 1
        self.ended_at.append((self.now_seconds, how))

    def _step(self) -> None:
        world = self.world
        for sequence in self._queue.first(world.slots - len(self._running)):
            self._queue.remove(sequence)
            request = self._requests[sequence]
            self._running.append(request)
            request.scheduled = True
            self._occupancy.began(request)
            self.deadlines.note_start(request, self.now_seconds)  # type: ignore[arg-type]
        decoding = [r for r in self._running if not r.left_prompt_tokens]
        room_tokens = world.step_tokens - len(decoding)
        prefilled = 0
        for request in self._running:
            taken = min(request.left_prompt_tokens, room_tokens - prefilled)
            request.left_prompt_tokens -= taken
            prefilled += taken
            if taken and not request.left_prompt_tokens:
                decoding.append(request)
        seconds = world.costs.step_seconds(len(decoding), prefilled) * self.slowness
        seconds *= self._rng.uniform(1 - world.noise, 1 + world.noise)
        self.now_seconds += seconds
        self._busy_seconds += seconds
        self._steps += 1
        self._prefilled += prefilled
        self._decoded += len(decoding)
        for request in decoding:
            request.candidates[0].output_tokens += 1
            if request.candidates[0].output_tokens == 1:
                self._occupancy.spoke(request)
            deadline_seconds = request.call.deadline_seconds
            is_late = deadline_seconds is not None and deadline_seconds < self.now_seconds
            if request.candidates[0].output_tokens >= request.will_say_tokens and not is_late:
                request.candidates[0].finish_reason = FinishReason.EOS
                request.account.received(self.now_seconds)
                self._drop(request, "done")
        self.deadlines.engine_reported(self._stats())
        for late, _ in self._gate.hopeless(self.now_seconds):
            self._drop(late, "shed")  # type: ignore[arg-type]

    def _stats(self) -> EngineStats:
        names = EngineStats.__struct_fields__[: -len(EngineStats.__struct_defaults__)]
        values: dict[str, Any] = dict.fromkeys(names, 0)
        values.update(
            running=len(self._running),
            waiting=len(self._queue),
            blocks_total=1,
            steps=self._steps,
            prefill_tokens=self._prefilled,
            decode_tokens=self._decoded,
            busy_seconds=self._busy_seconds,
        )
        return EngineStats(**values)


def closed_loop(world: World, clients: int, seconds: float) -> float:
    """Requests a second that end in time, without a gate."""
    server = Server(world, seed=0, refuse_unreachable_deadlines=False)
    server.run_closed(clients, seconds)
    return server.count("done") / seconds


def poisson(
    rate: float | Callable[[float], float], tenant: str, rng: random.Random, start: float = 0.0
) -> Iterator[tuple[float, str]]:
    """Arrivals of one tenant for ever; `rate` may depend on the time."""
    now = start
    while True:
        now += rng.expovariate(rate(now) if callable(rate) else rate)
        yield now, tenant


def together(*streams: Iterator[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Arrivals of several tenants in order of time."""
    return heapq.merge(*streams)
