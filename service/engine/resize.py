"""Grows and shrinks the KV pool between steps, while requests run.

A resize goes in chunks, one a step, so that no step waits for all of it: giving a page
memory or taking it back costs time, and so does moving a block. Growing takes memory first
and hands out blocks then; shrinking moves what is held out of the tail first.

Admission counts with a smaller size at once, and with a larger one as its blocks come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvcache import CacheManager, KVLayout
from kvcache.errors import MemoryShortError, PoolInUseError
from service.engine.messages import MemoryShortage, Resize, Resized, ShrinkPolicy
from service.engine.policy import headroom_blocks
from service.engine.scheduler import Scheduler
from service.engine.tenancy import Tenancy

# What one step may grow or shrink by: about 0.1 s on one core.
CHUNK_BYTES = 64 << 20


class ElasticMemory(Protocol):
    """The memory behind the pool, such as `kvcache.Arena`; blocks count the null block."""

    layout: KVLayout
    num_blocks: int
    max_blocks: int

    def require_memory(self, num_blocks: int) -> None:
        """Raises MemoryShortError when growing to `num_blocks` would."""

    def grow(self, num_blocks: int) -> None:
        """Gives more blocks memory, or raises MemoryShortError and changes nothing."""

    def shrink(self, num_blocks: int) -> None:
        """Gives the memory of the last blocks back."""


@dataclass(slots=True)
class _Order:
    """A resize that is under way; blocks count the null block."""

    call_id: int
    num_blocks: int
    policy: ShrinkPolicy
    began_seconds: float
    deadline_seconds: float
    before_blocks: int
    preempted: int = 0
    shortage: MemoryShortage | None = None


class PoolResizer:
    """Carries out one resize at a time; the newest one replaces the one before."""

    def __init__(
        self,
        manager: CacheManager,
        memory: ElasticMemory,
        scheduler: Scheduler,
        tenancy: Tenancy,
        load_line: float,
    ) -> None:
        """`load_line` is the setting of this name; it moves with the size of the pool."""
        self._manager = manager
        self._memory = memory
        self._scheduler = scheduler
        self._tenancy = tenancy
        self._load_line = load_line
        self._chunk_blocks = max(1, CHUNK_BYTES // memory.layout.block_bytes)
        self._order: _Order | None = None
        self._answers: list[Resized] = []

    @property
    def is_active(self) -> bool:
        """Whether a resize is under way, or its answer was not taken yet."""
        return self._order is not None or bool(self._answers)

    def take_answers(self) -> list[Resized]:
        """What has ended since the last call, oldest first."""
        answers, self._answers = self._answers, []
        return answers

    def order(self, resize: Resize, now_seconds: float) -> None:
        """Begins a resize; one that is under way ends with what is in force."""
        self._end(now_seconds)
        self._order = order = _Order(
            call_id=resize.call_id,
            num_blocks=min(resize.num_blocks + 1, self._memory.max_blocks),
            policy=resize.policy,
            began_seconds=now_seconds,
            deadline_seconds=now_seconds + resize.limit_seconds,
            before_blocks=self._memory.num_blocks,
        )
        try:
            self._memory.require_memory(order.num_blocks)
        except MemoryShortError as error:
            order.shortage = _shortage(error)
            self._end(now_seconds)
        else:
            self._set_admission()

    def advance(self, now_seconds: float) -> None:
        """Does a chunk of the resize that is under way, at a step boundary."""
        order = self._order
        if order is None:
            return
        if order.num_blocks > self._memory.num_blocks:
            self._grow(order)
        else:
            self._shrink(order, now_seconds)
        in_force = order.num_blocks == self._memory.num_blocks
        if in_force or order.shortage is not None or now_seconds >= order.deadline_seconds:
            self._end(now_seconds)

    def _grow(self, order: _Order) -> None:
        goal = min(order.num_blocks, self._memory.num_blocks + self._chunk_blocks)
        try:
            self._memory.grow(goal)
        except MemoryShortError as error:  # somebody else took it since the order came
            order.shortage = _shortage(error)
            return
        self._manager.resize(goal)
        self._tenancy.fit(goal - 1)
        self._set_admission()

    def _shrink(self, order: _Order, now_seconds: float) -> None:
        if not self._make_room(order, now_seconds):
            return
        goal = max(order.num_blocks, self._memory.num_blocks - self._chunk_blocks)
        self._tenancy.fit(goal - 1)
        try:
            self._manager.resize(goal)
        except PoolInUseError:  # pins and leases, which end by themselves
            self._tenancy.fit(self._manager.usable_blocks)
        else:
            self._memory.shrink(goal)

    def _set_admission(self) -> None:
        """Admission counts with what there is, or with what will be left of it."""
        usable_blocks = self._manager.usable_blocks
        if self._order is not None:
            usable_blocks = min(usable_blocks, self._order.num_blocks - 1)
        self._scheduler.set_pool(usable_blocks, headroom_blocks(usable_blocks, self._load_line))

    def _make_room(self, order: _Order, now_seconds: float) -> bool:
        """Whether all that is in use fits the new size, or nobody runs who could give way."""
        while self._scheduler.running_count:
            stats = self._manager.stats()
            in_use_blocks = stats.total - stats.free - stats.cached - stats.expected
            excess_blocks = in_use_blocks - (order.num_blocks - 1)
            if excess_blocks <= 0:
                return True
            if order.policy is ShrinkPolicy.WAIT:
                return False
            order.preempted += self._scheduler.make_room(excess_blocks, now_seconds)
        return True

    def _end(self, now_seconds: float) -> None:
        order, self._order = self._order, None
        if order is None:
            return
        self._set_admission()
        self._answers.append(
            Resized(
                call_id=order.call_id,
                before_blocks=order.before_blocks - 1,
                num_blocks=self._memory.num_blocks - 1,
                preempted=order.preempted,
                elapsed_seconds=now_seconds - order.began_seconds,
                shortage=order.shortage,
            )
        )


def _shortage(error: MemoryShortError) -> MemoryShortage:
    return MemoryShortage(error.wanted_bytes, error.available_bytes, error.headroom_bytes)
