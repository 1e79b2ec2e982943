"""The figures of the engine, gathered from its parts."""

from __future__ import annotations

from collections import Counter

from kvcache import CacheManager, MissReason, PreemptionMode
from service.engine.figures import EngineStats, Vitals
from service.engine.request import Sequence, SequenceState
from service.engine.scheduler import Scheduler
from service.engine.sequence_tiers import SequenceTiers
from service.engine.step_meter import StepMeter


def engine_stats(
    manager: CacheManager,
    scheduler: Scheduler,
    meter: StepMeter,
    tiers: SequenceTiers,
    vitals: Vitals | None,
) -> EngineStats:
    """The present numbers, but `vitals`, which are those of the last look at the device."""
    cache = manager.stats()
    return EngineStats(
        running=scheduler.running_count,
        waiting=scheduler.waiting_count,
        preempted=scheduler.preempted_count,
        blocks_total=cache.total,
        blocks_free=cache.free,
        blocks_cached=cache.cached + cache.expected,
        blocks_held=cache.held,
        blocks_reserved=cache.reserved,
        blocks_shared=cache.shared,
        steps=meter.steps,
        prefill_tokens=meter.prefill_tokens,
        decode_tokens=meter.decode_tokens,
        lookup_tokens=cache.lookup_tokens,
        hit_tokens=cache.hit_tokens,
        evicted_blocks=cache.evicted_blocks,
        preemptions=cache.preemptions,
        step_seconds=meter.step_seconds,
        last_step_seconds=meter.last_step_seconds,
        blocks_kept=cache.pinned + cache.loading + cache.storing,
        trims=cache.preemptions_by_mode[PreemptionMode.TRIM],
        swaps=cache.preemptions_by_mode[PreemptionMode.SWAP],
        tiers=tiers.figures(),
        vitals=vitals,
        busy_seconds=meter.busy_seconds,
        slack_tokens=cache.slack_tokens,
        regretted_tokens=cache.regretted_tokens,
        misses=tuple(cache.misses[reason] for reason in MissReason),
        preemption_counts=scheduler.preemption_counts,
        tenant_blocks=_blocks_by_tenant(scheduler.running(), manager.block_tokens),
    )


def _blocks_by_tenant(running: list[Sequence], block_tokens: int) -> dict[str, int]:
    blocks: Counter[str] = Counter()
    for sequence in running:
        # The newest token of one that decodes gets its slot in the next step.
        is_decoding = sequence.state is SequenceState.DECODE
        held_tokens = sequence.computed_tokens if is_decoding else sequence.num_tokens
        blocks[sequence.spec.tenant] += -(-held_tokens // block_tokens)
    return dict(blocks)
