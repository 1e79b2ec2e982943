"""A device with a KV pool, steps of a model and a neighbour, governed by the real governor.

Time goes in steps. A step takes activations, which the allocator keeps for the next one; a step
that finds too little fails, and is counted. Sequences hold blocks and grow by a token a step.
The pool changes by one chunk a step, as with `PoolResizer`, and preempts for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.engine.figures import GovernorAction
from service.engine.governor import Governor, GovernorDecision
from service.engine.readings import GovernorReading

MIB = 1 << 20
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Machine:
    """Sizes of a device and of what is on it."""

    total_bytes: int
    weights_bytes: int
    demand_bytes: int  # of a full step
    fixed_bytes: int  # of these, whatever the number of tokens
    block_bytes: int
    pool_blocks: int  # at the start
    step_seconds: float
    chunk_bytes: int = 64 * MIB
    keeps_activations: bool = True  # False: the allocator keeps nothing, the neighbour gets it

    @classmethod
    def sized(
        cls,
        total_bytes: int,
        demand_share: float,
        *,
        utilization: float = 0.9,
        step_seconds: float = 0.05,
        blocks: int = 2000,
        keeps_activations: bool = True,
    ) -> Machine:
        """A tenth is weights; the pool gets what utilization, weights and demand leave."""
        weights_bytes = total_bytes // 10
        demand_bytes = int(total_bytes * demand_share)
        pool_bytes = int(total_bytes * utilization) - weights_bytes - demand_bytes
        return cls(
            total_bytes=total_bytes,
            weights_bytes=weights_bytes,
            demand_bytes=demand_bytes,
            fixed_bytes=demand_bytes // 5,
            block_bytes=max(1, pool_bytes // blocks),
            pool_blocks=blocks,
            step_seconds=step_seconds,
            keeps_activations=keeps_activations,
        )


@dataclass
class Member:
    """A sequence; its blocks are those of its tokens while it runs."""

    tokens: int
    remaining_tokens: int

    @property
    def blocks(self) -> int:
        return -(-self.tokens // BLOCK_TOKENS)


@dataclass
class Moment:
    """What was true after a step."""

    seconds: float
    level: PressureLevel
    goal_blocks: int
    pool_blocks: int
    headroom_bytes: int
    demand_bytes: int  # of the step that the decision allows
    running: int
    waiting: int
    decision: GovernorDecision


@dataclass
class Simulation:
    """`foreign` and `arrivals` are functions of the time."""

    machine: Machine
    foreign: Callable[[float], int] = lambda _: 0
    arrivals: Callable[[float], list[Member]] = lambda _: []
    max_running: int = 64
    governor: Governor = field(default_factory=lambda: Governor(0.75, 0.9, 512))
    seconds: float = 0.0
    failures: list[float] = field(default_factory=list)  # when a step found no memory
    preemptions: int = 0
    completed: int = 0
    moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool_blocks = self.machine.pool_blocks
        self.running: list[Member] = []
        self.waiting: list[Member] = []
        self.preempted: list[Member] = []
        self._cached_bytes = 0  # activations that the allocator keeps
        self._decision: GovernorDecision | None = None

    @property
    def held_blocks(self) -> int:
        return sum(member.blocks for member in self.running)

    @property
    def free_bytes(self) -> int:
        """The neighbour takes what it wants and is there."""
        machine = self.machine
        own = machine.weights_bytes + self.pool_blocks * machine.block_bytes + self._cached_bytes
        return max(0, machine.total_bytes - own - self.foreign(self.seconds))

    @property
    def headroom_bytes(self) -> int:
        return self.free_bytes + self._cached_bytes

    @property
    def shrink_blocks(self) -> int:
        """What the pool gives back in a step, see `PoolResizer`."""
        chunk = self.machine.chunk_bytes // self.machine.block_bytes
        return max(1, chunk, self.machine.pool_blocks // 16)

    def step_bytes(self, tokens: int) -> int:
        """Activations of a step of so many tokens; the full budget is 512."""
        machine = self.machine
        return machine.fixed_bytes + (machine.demand_bytes - machine.fixed_bytes) * tokens // 512

    def run(self, seconds: float) -> None:
        end = self.seconds + seconds
        while self.seconds < end:
            self.step()

    def step(self) -> None:
        self.waiting.extend(self.arrivals(self.seconds))
        if self._decision is None or self.governor.is_due(self.seconds):
            self._decision = self.governor.decide(self._reading())
        decision = self._decision
        self._resize(decision)
        self._grow()
        self._admit(decision)
        self._compute(decision)
        prefill = min(512, decision.prefill_tokens + len(self.running))
        self.moments.append(
            Moment(
                seconds=self.seconds,
                level=decision.level,
                goal_blocks=decision.pool_goal_blocks,
                pool_blocks=self.pool_blocks,
                headroom_bytes=self.headroom_bytes,
                demand_bytes=self.step_bytes(prefill),
                running=len(self.running),
                waiting=len(self.waiting) + len(self.preempted),
                decision=decision,
            )
        )
        self.seconds += self.machine.step_seconds

    def _reading(self) -> GovernorReading:
        narrow = self.governor.prefill_tokens(PressureLevel.HIGH) + len(self.running)
        live = [*self.running, *self.waiting, *self.preempted]
        return GovernorReading(
            now_seconds=self.seconds,
            pool_blocks=self.pool_blocks,
            ceiling_blocks=self.machine.pool_blocks,
            running_blocks=max((member.blocks + 1 for member in self.running), default=0),
            live_blocks=max((member.blocks + 1 for member in live), default=0),
            held_blocks=self.held_blocks,
            block_bytes=self.machine.block_bytes,
            kv_exhaustion_seconds=FOREVER_SECONDS,
            running=len(self.running),
            preempted=len(self.preempted),
            device_total_bytes=self.machine.total_bytes,
            headroom_bytes=self.headroom_bytes,
            demand_bytes=self.step_bytes(512),
            narrow_demand_bytes=self.step_bytes(min(512, narrow)),
            oom_seconds=self.failures[-1] if self.failures else None,
        )

    def _resize(self, decision: GovernorDecision) -> None:
        chunk = max(1, self.machine.chunk_bytes // self.machine.block_bytes)
        goal = decision.pool_goal_blocks
        if goal > self.pool_blocks:
            room = self.free_bytes // self.machine.block_bytes
            self.pool_blocks = min(goal, self.pool_blocks + min(chunk, room))
        elif goal < self.pool_blocks:
            while self.held_blocks > goal and self.running:
                self._preempt()
            self.pool_blocks = max(goal, self.pool_blocks - self.shrink_blocks)

    def _preempt(self) -> None:
        self.preempted.append(self.running.pop())
        self.preemptions += 1

    def _grow(self) -> None:
        for member in self.running:
            member.tokens += 1
            member.remaining_tokens -= 1
        done = [member for member in self.running if member.remaining_tokens <= 0]
        self.completed += len(done)
        self.running = [member for member in self.running if member.remaining_tokens > 0]
        while self.held_blocks > self.pool_blocks:
            self._preempt()

    def _admit(self, decision: GovernorDecision) -> None:
        """Up to the load line, as long as the governor lets anybody in, or nobody runs."""
        room = 0.9 * self.pool_blocks - self.held_blocks
        for queue in (self.preempted, self.waiting):
            while queue and len(self.running) < self.max_running:
                wanted = queue[0].blocks
                if self.running and (not decision.admits or wanted > room):
                    return
                if wanted + 1 > self.pool_blocks:
                    return
                self.running.append(queue.pop(0))
                room -= wanted

    def _compute(self, decision: GovernorDecision) -> None:
        if not self.running:
            return
        machine = self.machine
        taken = self.step_bytes(min(512, decision.prefill_tokens + len(self.running)))
        if taken > self.headroom_bytes:
            self.failures.append(self.seconds)
            self._cached_bytes = 0  # the allocator lets go of what it keeps
        else:
            self._cached_bytes = max(self._cached_bytes, taken) * machine.keeps_activations
        # What the neighbour wanted and was not there, it takes now.
        self._cached_bytes = min(self._cached_bytes, self.headroom_bytes)

    # --- what happened -----------------------------------------------------------

    def since(self, seconds: float) -> list[Moment]:
        return [moment for moment in self.moments if moment.seconds >= seconds]

    def level_changes(self, since_seconds: float = 0.0) -> int:
        levels = [moment.level for moment in self.since(since_seconds)]
        return sum(a is not b for a, b in pairwise(levels))

    def turns(self, since_seconds: float = 0.0) -> int:
        """How often the goal of the pool changed its direction."""
        goals = [moment.goal_blocks for moment in self.since(since_seconds)]
        moves = [b > a for a, b in pairwise(goals) if a != b]
        return sum(a != b for a, b in pairwise(moves))

    def actions(self) -> list[GovernorAction]:
        seen: list[GovernorAction] = []
        last: GovernorDecision | None = None
        for moment in self.moments:
            if moment.decision is not last:
                seen.extend(moment.decision.actions)
            last = moment.decision
        return seen

    def short_stretches(self) -> list[tuple[float, float]]:
        """Begin and duration of each time in which a step would have found no memory."""
        stretches: list[tuple[float, float]] = []
        began: float | None = None
        for moment in self.moments:
            is_short = moment.headroom_bytes < moment.demand_bytes
            if is_short and began is None:
                began = moment.seconds
            elif not is_short and began is not None:
                stretches.append((began, moment.seconds - began))
                began = None
        if began is not None:
            stretches.append((began, self.seconds - began))
        return stretches


def ramp(size_bytes: int, begin: float, seconds: float, hold: float) -> Callable[[float], int]:
    """A neighbour that takes memory from `begin` on, keeps it and gives it back as fast."""

    def taken(now: float) -> int:
        rise = (now - begin) / seconds
        fall = (begin + 2 * seconds + hold - now) / seconds
        return int(size_bytes * min(1.0, max(0.0, min(rise, fall))))

    return taken


def steady_load(
    per_second: float, prompt_tokens: int, output_tokens: int, step_seconds: float
) -> Callable[[float], list[Member]]:
    """Arrivals at an even pace."""

    def arrivals(now: float) -> list[Member]:
        before, after = int(now * per_second), int((now + step_seconds) * per_second)
        return [Member(prompt_tokens, output_tokens) for _ in range(after - before)]

    return arrivals
