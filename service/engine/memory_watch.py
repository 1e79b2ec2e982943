"""Looks at all that can run out of memory, ten times a second, and does what the governor says."""

from __future__ import annotations

from collections import Counter

from kvcache import CacheManager
from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.device.memory import DeviceMemory, MemoryFigures
from service.device.owner import Owner
from service.engine.demand import Demand
from service.engine.figures import WATERMARK_SECONDS, GovernorAction, Vitals
from service.engine.governor import Governor, GovernorDecision
from service.engine.growth import Growth
from service.engine.ladder import OomLadder
from service.engine.readings import GovernorReading
from service.engine.resize import PoolResizer
from service.engine.scheduler import Scheduler
from service.engine.watermark import HighWatermark, LowWatermark


class MemoryWatch:
    """Reads the figures, asks the governor, and sets pace and pool; tells it all as `Vitals`."""

    def __init__(
        self,
        device: DeviceMemory,
        manager: CacheManager,
        scheduler: Scheduler,
        resizer: PoolResizer,
        governor: Governor,
        ladder: OomLadder,
        demand: Demand,
        growth: Growth,
        block_bytes: int,
    ) -> None:
        self._device = device
        self._manager = manager
        self._scheduler = scheduler
        self._resizer = resizer
        self._governor = governor
        self._ladder = ladder
        self._demand = demand
        self._growth = growth
        self._block_bytes = block_bytes
        self._decision = GovernorDecision(
            level=PressureLevel.NORMAL,
            step_tokens=ladder.step_tokens,
            prefill_tokens=ladder.step_tokens,
            admits=True,
            pool_goal_blocks=resizer.ceiling_blocks,
            kv_exhaustion_seconds=FOREVER_SECONDS,
            device_exhaustion_seconds=FOREVER_SECONDS,
        )
        self._actions: Counter[GovernorAction] = Counter()
        self._headroom_low = LowWatermark(WATERMARK_SECONDS)
        self._demand_high = HighWatermark(WATERMARK_SECONDS)
        self._free_low = LowWatermark(WATERMARK_SECONDS)
        self.vitals: Vitals | None = None  # as of the last look

    def look(self, now_seconds: float) -> None:
        """To be called before every step and while idle; asks the governor when it is time to.

        Lets the next step be as large as the governor and the OOM ladder allow.
        """
        figures: MemoryFigures | None = None
        if self._governor.is_due(now_seconds):
            figures = self._device.figures()
            self._decision = decision = self._governor.decide(self._reading(now_seconds, figures))
            self._actions.update(decision.actions)
            self._resizer.govern(decision.pool_goal_blocks, now_seconds)
        self._set_pace()
        if figures is not None:
            self._note(now_seconds, figures)

    def shrink(self, size_bytes: int, floor_blocks: int, now_seconds: float) -> None:
        """Makes the pool give so much back at once, as long as `floor_blocks` are left."""
        spare_blocks = self._manager.usable_blocks - floor_blocks
        blocks = min(-(-size_bytes // self._block_bytes), spare_blocks)
        if blocks > 0:
            self._resizer.give_back(blocks, now_seconds)
            self._governor.pool_gave(now_seconds, self._manager.usable_blocks)

    def observe(self, now_seconds: float) -> Vitals:
        """The figures of this moment, with the decision in force."""
        return self._note(now_seconds, self._device.figures())

    def _note(self, now_seconds: float, figures: MemoryFigures) -> Vitals:
        decision, owners = self._decision, figures.by_owner
        pace = self._scheduler.pace
        retries, shrinks, requeues, fails = self._ladder.rungs
        demand_bytes = self._demand.bytes_at(pace)
        cache = self._manager.stats()
        free_blocks = cache.free + cache.cached + cache.expected
        narrows, closes, gives, grows = (self._actions[action] for action in GovernorAction)
        self.vitals = Vitals(
            taken_seconds=now_seconds,
            level=decision.level,
            device_total_bytes=figures.total_bytes,
            device_free_bytes=figures.free_bytes,
            weights_bytes=owners[Owner.WEIGHTS],
            kv_bytes=owners[Owner.KV_POOL],
            activation_bytes=owners[Owner.ACTIVATIONS],
            graph_bytes=owners[Owner.GRAPHS],
            context_bytes=owners[Owner.CONTEXT],
            other_bytes=owners[Owner.OTHERS],
            reclaimable_bytes=figures.reclaimable_bytes,
            demand_bytes=demand_bytes,
            host_available_bytes=figures.host_available_bytes,
            kv_exhaustion_seconds=decision.kv_exhaustion_seconds,
            device_exhaustion_seconds=decision.device_exhaustion_seconds,
            step_tokens=pace.step_tokens,
            prefill_tokens=pace.prefill_tokens,
            admits=pace.admits,
            pool_goal_blocks=decision.pool_goal_blocks,
            pool_ceiling_blocks=self._resizer.ceiling_blocks,
            allocator_retries=figures.allocator_retries,
            rungs=(retries, shrinks, requeues, fails),
            actions=(narrows, closes, gives, grows),
            allocator_allocated_bytes=figures.allocated_bytes,
            allocator_reserved_bytes=figures.reserved_bytes,
            allocator_inactive_bytes=figures.inactive_bytes,
            allocator_ooms=figures.allocator_ooms,
            headroom_low_bytes=self._headroom_low.add(now_seconds, figures.headroom_bytes),
            demand_high_bytes=self._demand_high.add(now_seconds, demand_bytes),
            kv_free_low_blocks=self._free_low.add(now_seconds, free_blocks),
        )
        return self.vitals

    def _set_pace(self) -> None:
        decision = self._decision
        step_tokens = min(decision.step_tokens, self._ladder.step_tokens)
        self._scheduler.set_pace(step_tokens, decision.prefill_tokens, decision.admits)

    def _reading(self, now_seconds: float, figures: MemoryFigures) -> GovernorReading:
        narrow_tokens = self._governor.prefill_tokens(PressureLevel.HIGH)
        return GovernorReading(
            now_seconds=now_seconds,
            pool_blocks=self._manager.usable_blocks,
            ceiling_blocks=self._resizer.ceiling_blocks,
            running_blocks=self._scheduler.largest_blocks(and_waiting=False),
            live_blocks=self._scheduler.largest_blocks(and_waiting=True),
            held_blocks=self._manager.stats().held,
            block_bytes=self._block_bytes,
            kv_exhaustion_seconds=self._growth.exhaustion_seconds(),
            running=self._scheduler.running_count,
            preempted=self._scheduler.preempted_count,
            device_total_bytes=figures.total_bytes,
            headroom_bytes=figures.headroom_bytes,
            demand_bytes=self._demand.at_rest_bytes(),
            narrow_demand_bytes=self._demand.narrow_bytes(narrow_tokens),
            oom_seconds=self._ladder.failed_seconds,
        )
