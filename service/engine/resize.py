"""Grows and shrinks the KV pool between steps, while requests run.

A resize goes in chunks, one a step, so that no step waits for all of it: giving a page
memory or taking it back costs time, and so does moving a block. Growing takes memory first
and hands out blocks then; shrinking moves what is held out of the tail first.

Admission counts with a smaller size at once, and with a larger one as its blocks come.

Two have a say: an order of the admin sets the *ceiling*, the governor a *goal* below it while
the device is short of memory. The pool has the smaller of the two. An order is answered when
that is in force, and the rest of it when the governor lets go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvcache import CacheManager, KVLayout
from kvcache.errors import MemoryShortError, PoolInUseError
from service.engine.drought import Drought
from service.engine.messages import MemoryShortage, Resize, Resized, ShrinkPolicy
from service.engine.policy import headroom_blocks
from service.engine.scheduler import Scheduler
from service.engine.tenancy import Tenancy

# What one step may grow or shrink by: about 0.1 s on one core.
CHUNK_BYTES = 64 << 20
# Of the largest pool: what one step may give back for the governor, if that is more.
_GOVERNED_PARTS = 16


class ElasticMemory(Protocol):
    """The memory behind the pool, such as `kvcache.Arena`; blocks count the null block."""

    @property
    def layout(self) -> KVLayout:
        """Of one block."""

    @property
    def num_blocks(self) -> int:
        """Blocks that have memory."""

    @property
    def max_blocks(self) -> int:
        """Blocks that it can have."""

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
        wait_seconds: float,
        ceiling_blocks: int | None = None,
    ) -> None:
        """`load_line` is the setting of this name; it moves with the size of the pool.

        `wait_seconds` is the setting pool_wait_seconds. `ceiling_blocks` stand as if they had been
        ordered; None: the pool is as large as it is to be.
        """
        self._manager = manager
        self._memory = memory
        self._scheduler = scheduler
        self._tenancy = tenancy
        self._load_line = load_line
        self._chunk_blocks = max(1, CHUNK_BYTES // memory.layout.block_bytes)
        self._order: _Order | None = None
        self._answers: list[Resized] = []
        # With the null block, as all below.
        self._ceiling = memory.num_blocks if ceiling_blocks is None else ceiling_blocks + 1
        self._goal: int | None = None  # None: the governor lets the pool have its ceiling
        self._drought = Drought(wait_seconds)
        if self._ceiling > memory.num_blocks:
            self._set_admission()

    @property
    def is_active(self) -> bool:
        """Whether the pool changes its size, or an answer was not taken yet."""
        return self._order is not None or self._is_off_goal or bool(self._answers)

    @property
    def ceiling_blocks(self) -> int:
        """Usable blocks that the pool may have at present, if the governor lets it.

        As many as were ordered; but as many as there are while an order waits for others.
        """
        if self._waits_for_others:
            return max(self._wanted, self._memory.num_blocks) - 1
        return self._wanted - 1

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
            # What was ordered before and is held back comes with the governor, as memory does.
            if order.num_blocks > self._ceiling:
                self._memory.require_memory(order.num_blocks)
        except MemoryShortError as error:
            order.shortage = _shortage(error)
            self._end(now_seconds)
        else:
            self._set_admission()

    def govern(self, goal_blocks: int, now_seconds: float) -> None:
        """Bounds the pool to so many usable blocks; the ceiling or more: lets go of it.

        The next steps do it, at the cost of running sequences if need be. Growing that finds no
        memory is tried again now and then.
        """
        before = self._target, self._reach_blocks
        self._goal = max(1, goal_blocks) + 1 if goal_blocks < self.ceiling_blocks else None
        if self._target <= self._memory.num_blocks:
            self._drought.end()
        self._drought.note_time(now_seconds)
        if (self._target, self._reach_blocks) != before:
            self._set_admission()

    def give_back(self, blocks: int, now_seconds: float) -> int:
        """Makes the pool so many blocks smaller at once; answers how many it could.

        It stays so small until `govern` says otherwise.
        """
        before = self._memory.num_blocks
        self._goal = max(2, before - blocks)
        self._set_admission()
        while (left := self._memory.num_blocks) > self._goal:
            self._shrink(self._goal, now_seconds, may_preempt=True)
            if self._memory.num_blocks == left:
                break
        return before - self._memory.num_blocks

    def advance(self, now_seconds: float) -> None:
        """Does a chunk of what is under way, at a step boundary."""
        size, target = self._memory.num_blocks, self._target
        if target > size:
            self._grow(target, now_seconds)
        elif target < size:
            forced = self._goal if self._waits_for_others else target
            if forced is not None and forced < size:
                self._shrink(forced, now_seconds, may_preempt=True)
            else:
                self._shrink(target, now_seconds, may_preempt=False)
        order = self._order
        if order is not None and (
            self._memory.num_blocks == self._target
            or order.shortage is not None
            or now_seconds >= order.deadline_seconds
        ):
            self._end(now_seconds)

    @property
    def _wanted(self) -> int:
        """The size that was ordered."""
        return self._ceiling if self._order is None else self._order.num_blocks

    @property
    def _target(self) -> int:
        """The size that the pool is to have now."""
        return self._wanted if self._goal is None else min(self._wanted, self._goal)

    @property
    def _reach_blocks(self) -> int:
        """Usable blocks that the pool may have without another order."""
        return self._manager.usable_blocks if self._drought.is_lasting else self._wanted - 1

    @property
    def _is_off_goal(self) -> bool:
        """Whether another chunk may help."""
        size = self._memory.num_blocks
        return self._target < size or (self._target > size and not self._drought.is_resting)

    @property
    def _waits_for_others(self) -> bool:
        """Whether running sequences are to end by themselves, as far as the order goes."""
        return self._order is not None and self._order.policy is ShrinkPolicy.WAIT

    def _grow(self, target: int, now_seconds: float) -> None:
        order = self._order
        if order is None and self._drought.is_resting:
            return
        goal = min(target, self._memory.num_blocks + self._chunk_blocks)
        try:
            self._memory.grow(goal)
        except MemoryShortError as error:  # somebody else took it since this was decided
            self._drought.note_failure(now_seconds)
            if order is not None:
                order.shortage = _shortage(error)
            else:
                self._grow_by(error.available_bytes - error.headroom_bytes)
            return
        self._drought.end()
        self._take_in()

    def _grow_by(self, size_bytes: int) -> None:
        """Takes what is left, where all of it was too much."""
        blocks = size_bytes // self._memory.layout.block_bytes
        if blocks <= 0:
            return
        try:
            self._memory.grow(self._memory.num_blocks + blocks)
        except MemoryShortError:
            return  # gone in this moment; the next try comes anyway
        self._take_in()

    def _take_in(self) -> None:
        """Hands out the blocks that the memory has grown by."""
        self._manager.resize(self._memory.num_blocks)
        self._tenancy.fit(self._memory.num_blocks - 1)
        self._set_admission()

    def _shrink(self, target: int, now_seconds: float, *, may_preempt: bool) -> None:
        if not self._make_room(target, now_seconds, may_preempt=may_preempt):
            return
        chunk_blocks = self._chunk_blocks
        if target == self._goal:  # a step that finds no memory costs more than one that waits
            chunk_blocks = max(chunk_blocks, self._memory.max_blocks // _GOVERNED_PARTS)
        goal = max(target, self._memory.num_blocks - chunk_blocks)
        self._tenancy.fit(goal - 1)
        try:
            self._manager.resize(goal)
        except PoolInUseError:  # pins and leases, which end by themselves
            self._tenancy.fit(self._manager.usable_blocks)
        else:
            self._memory.shrink(goal)

    def _set_admission(self) -> None:
        """Admission counts with what there is, or with what will be left of it."""
        usable_blocks = min(self._manager.usable_blocks, self._target - 1)
        self._scheduler.set_pool(
            usable_blocks, headroom_blocks(usable_blocks, self._load_line), self._reach_blocks
        )

    def _make_room(self, target: int, now_seconds: float, *, may_preempt: bool) -> bool:
        """Whether all that is in use fits `target`, or nobody runs who could give way."""
        while self._scheduler.running_count:
            stats = self._manager.stats()
            in_use_blocks = stats.total - stats.free - stats.cached - stats.expected
            excess_blocks = in_use_blocks - (target - 1)
            if excess_blocks <= 0:
                return True
            if not may_preempt:
                return False
            preempted = self._scheduler.make_room(excess_blocks, now_seconds)
            if self._order is not None:
                self._order.preempted += preempted
        return True

    def _end(self, now_seconds: float) -> None:
        order = self._order
        if order is None:
            return
        in_force = self._memory.num_blocks == self._target and order.shortage is None
        # What is not in force by now does not go on behind the caller's back.
        reached = max(self._memory.num_blocks, min(self._ceiling, order.num_blocks))
        self._ceiling = order.num_blocks if in_force else reached
        self._order = None
        self._set_admission()
        self._answers.append(
            Resized(
                call_id=order.call_id,
                before_blocks=order.before_blocks - 1,
                num_blocks=self._memory.num_blocks - 1,
                ceiling_blocks=self._ceiling - 1,
                preempted=order.preempted,
                elapsed_seconds=now_seconds - order.began_seconds,
                shortage=order.shortage,
            )
        )


def _shortage(error: MemoryShortError) -> MemoryShortage:
    return MemoryShortage(error.wanted_bytes, error.available_bytes, error.headroom_bytes)
