"""Whatever kills engines: the killers are convicted, nobody else, and it takes few engines.

The world is a front reduced to its rules over an engine reduced to its timing: a request
is computed for some steps of prefill and then says a token a step. A killer ends the process
in the same place each time, and the step dies with it: none of its tokens reaches the front.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from service.front.quarantine import CONVICTING_DEATHS, Quarantine
from service.front.restart import EngineLife

MAX_STEPS = 20_000


@dataclass(eq=False)
class Request:
    """One request and how far the front knows it to be."""

    number: int
    arrival_step: int
    prefill_steps: int
    tokens: int
    dies_at_token: int | None  # None: it is innocent
    dies_at_prefill_step: int  # while it computes what precedes that token
    dies_by_sigkill: bool  # the OOM killer's way
    leaves_step: int | None = None  # its client gives up then
    received: int = 0
    computed_steps: int = 0  # by the present engine

    @property
    def kills_now(self) -> bool:
        """Whether the step that is computed now is its last."""
        if self.received != self.dies_at_token:
            return False
        return self.computed_steps >= min(self.dies_at_prefill_step, self.prefill_steps)


@dataclass
class World:
    """Steps the engine, restarts it, and keeps count."""

    requests: list[Request]
    running_limit: int
    killed_from_outside: Callable[[int, bool], bool]  # (step, whether requests are in flight)
    quarantine: Quarantine[Request] = field(default_factory=Quarantine)
    in_flight: list[Request] = field(default_factory=list)
    open: list[Request] = field(default_factory=list)
    convicted: list[Request] = field(default_factory=list)
    deaths: int = 0
    outside_kills: int = 0
    lives: list[EngineLife] = field(default_factory=list)

    def run(self) -> None:
        for step in range(MAX_STEPS):
            for request in self.requests:
                if request.arrival_step == step:
                    self.quarantine.add(request)
                    self.open.append(request)
                if request.leaves_step == step and request in self.open:
                    self.end(request)
            if not self.open and all(r.arrival_step < step for r in self.requests):
                return
            while (entrant := self.quarantine.next_entrant()) is not None:
                entrant.computed_steps = 0
                self.quarantine.enter(entrant, [entrant.number])
                self.in_flight.append(entrant)
            self.step(step)
        raise AssertionError("it never ends")

    def step(self, step: int) -> None:
        running = self.in_flight[: self.running_limit]
        if self.killed_from_outside(step, bool(running)):
            self.outside_kills += 1
            self.die(crashed=False)
        elif killers := [r for r in running if r.kills_now]:
            self.die(crashed=not killers[0].dies_by_sigkill)
        elif running:
            self.quarantine.stepped()
            for request in running:
                self.compute(request)

    def compute(self, request: Request) -> None:
        request.computed_steps += 1
        if request.computed_steps <= request.prefill_steps:
            return
        request.received += 1
        self.quarantine.progressed(request.number)
        if request.received == request.tokens:
            self.end(request)

    def end(self, request: Request) -> None:
        self.quarantine.remove(request)
        self.open.remove(request)
        if request in self.in_flight:
            self.in_flight.remove(request)

    def die(self, *, crashed: bool) -> None:
        self.deaths += 1
        inquest = self.quarantine.died(crashed=crashed)
        assert inquest.in_flight == len(self.in_flight)
        self.in_flight.clear()
        self.lives.append(inquest.life)
        if inquest.conviction is not None:
            self.convicted.append(inquest.conviction.request)
            self.open.remove(inquest.conviction.request)
        assert self.quarantine.waiting == len(self.open)


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    killers = draw(st.integers(0, 4))
    innocents = draw(st.integers(0, 20))
    guilty = draw(st.permutations([True] * killers + [False] * innocents))
    requests = []
    for number, is_killer in enumerate(guilty):
        tokens = draw(st.integers(1, 12))
        requests.append(
            Request(
                number=number,
                arrival_step=draw(st.integers(0, 15)),
                prefill_steps=draw(st.integers(0, 3)),
                tokens=tokens,
                dies_at_token=draw(st.integers(0, tokens - 1)) if is_killer else None,
                dies_at_prefill_step=draw(st.integers(0, 3)),
                dies_by_sigkill=is_killer and draw(st.booleans()),
                leaves_step=draw(st.none() | st.integers(0, 60)),
            )
        )
    return requests


def check(world: World) -> None:
    """The killers were convicted, the others have all their tokens; it took few engines."""
    killers = [r for r in world.requests if r.dies_at_token is not None]
    for request in world.requests:
        if request.dies_at_token is None:
            assert request not in world.convicted
            assert request.received == request.tokens or request.leaves_step is not None
        elif request.leaves_step is None:
            assert request in world.convicted
            assert request.received == request.dies_at_token
    # For each killer: two deaths in company, one as the last to enter, and those alone. While
    # one is tried, a proven one may come to its own place and spoil the evidence once.
    by_crash = sum(not r.dies_by_sigkill for r in killers)
    by_sigkill = len(killers) - by_crash
    assert world.deaths <= 5 * by_crash + 8 * by_sigkill + world.outside_kills
    # The search is no crash loop: only the convictions may count.
    if all(r.leaves_step is None for r in killers):
        assert world.lives.count(EngineLife.NOTHING) <= len(killers)


@settings(deadline=None)
@given(
    requests=request_lists(),
    running_limit=st.integers(1, 24),
    kill_steps=st.sets(st.integers(0, 60), max_size=CONVICTING_DEATHS - 1),
)
def test_killers_are_convicted_and_nobody_else(
    requests: list[Request], running_limit: int, kill_steps: set[int]
) -> None:
    """Kills from outside come at the worst moments, but too few of them to look like a killer."""
    world = World(requests, running_limit, lambda step, busy: busy and step in kill_steps)
    world.run()
    check(world)


@settings(deadline=None)
@given(requests=request_lists(), seed=st.integers(0, 2**32))
def test_many_kills_at_random_moments_convict_nobody_else(
    requests: list[Request], seed: int
) -> None:
    moments = random.Random(seed)
    world = World(requests, 24, lambda _, busy: busy and moments.random() < 1 / 40)
    world.run()
    check(world)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), requests=st.integers(2, 200))
def test_one_killer_among_many_costs_as_few_engines_as_among_two(seed: int, requests: int) -> None:
    draw = random.Random(seed)
    world = World(
        [
            Request(number, 0, draw.randrange(4), 1 + draw.randrange(30), None, 0, False)
            for number in range(requests)
        ],
        running_limit=64,
        killed_from_outside=lambda _step, _busy: False,
    )
    killer = draw.choice(world.requests)
    killer.dies_at_token = 0
    world.run()
    assert [r.number for r in world.convicted] == [killer.number]
    assert world.deaths <= 4
    assert all(r.received == r.tokens for r in world.requests if r is not killer)
