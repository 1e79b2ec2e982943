"""The engine without its socket: sequences in, one `StepReport` per step out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kvcache import CacheManager, PreemptionMode
from kvcache.tokens import token_array
from service.config.tenants import parse_tenant_shares
from service.engine.batch import build_batch
from service.engine.figures import EngineStats
from service.engine.harvest import Harvester
from service.engine.live_sequences import LiveSequences
from service.engine.messages import (
    FinishReason,
    Output,
    Resize,
    Resized,
    SequenceSpec,
    Started,
    StepReport,
)
from service.engine.policy import Chunk, SchedulerLimits, headroom_blocks
from service.engine.request import Sequence
from service.engine.resize import ElasticMemory, PoolResizer
from service.engine.runner import Runner
from service.engine.scheduler import Scheduler
from service.engine.sequence_tiers import SequenceTiers
from service.engine.step_meter import StepMeter
from service.engine.step_plan import StepPlan
from service.engine.tenancy import Tenancy
from service.engine.victims import VictimChooser

if TYPE_CHECKING:
    from kvcache import FlushResult
    from kvcache.tiers.offload import Offload
    from service.config import EngineSettings


class EngineCore:
    """Schedules, computes, samples and reports; owns every sequence of the engine.

    Not thread-safe: one thread calls everything. Between calls the core is at a step
    boundary, so `abort` frees blocks at once.
    """

    def __init__(
        self,
        runner: Runner,
        manager: CacheManager,
        memory: ElasticMemory,
        settings: EngineSettings,
        max_context_tokens: int,
        *,
        offload: Offload | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._manager = manager
        self._block_tokens = settings.block_tokens
        self._max_context_tokens = max_context_tokens
        self._clock = clock
        self._tiers = SequenceTiers(offload)
        tenancy = Tenancy(manager, parse_tenant_shares(settings.tenant_shares or ""))
        self._victims = VictimChooser(manager, memory.layout.block_bytes, self._tiers, tenancy)
        self._scheduler = Scheduler(
            manager,
            SchedulerLimits(
                max_running_sequences=settings.max_running_sequences,
                max_step_tokens=settings.max_step_tokens,
                prefill_chunk_tokens=settings.prefill_chunk_tokens,
                headroom_blocks=headroom_blocks(manager.usable_blocks, settings.load_line),
                max_skips=settings.max_admission_skips,
                prompt_logprob_rows=settings.prompt_logprob_rows,
            ),
            self._victims,
            self._tiers,
        )
        self._resizer = PoolResizer(manager, memory, self._scheduler, tenancy, settings.load_line)
        self._live = LiveSequences()
        self._harvester = Harvester(manager, self._scheduler, self._live, max_context_tokens)
        self._meter = StepMeter()
        self._computed = False  # whether the last step had something to compute

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute or to tell."""
        return self._scheduler.has_work or self._live.has_ends

    @property
    def is_stalled(self) -> bool:
        """Whether the last step had nothing to compute: a load, a pin or a resize has to end."""
        return not self._computed

    def rest(self) -> None:
        """To be called now and then while there is no work: ends what is past its deadline."""
        self._tiers.poll()
        self._manager.expire()

    def submit(self, specs: Iterable[SequenceSpec]) -> None:
        """Takes sequences in; raises DuplicateSequence for an id that is live."""
        for spec in specs:
            sequence = self._live.enter(spec)
            if sequence.prompt_tokens >= self._max_context_tokens:
                needed_blocks = -(-sequence.num_tokens // self._block_tokens)
                self._refuse(sequence, needed_blocks, self._max_context_tokens - 1)
            elif reason := sequence.finish_reason(self._max_context_tokens):
                # Nothing was left to do when its engine died.
                self._live.finish(sequence, reason, self._clock())
            else:
                self._scheduler.submit(sequence)

    def abort(self, sequence_ids: Iterable[int]) -> None:
        """Ends sequences, in whatever state, and frees their blocks; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            sequence = self._live.get(sequence_id)
            if sequence is not None:
                self._scheduler.remove(sequence)
                self._live.finish(sequence, FinishReason.CANCELLED, self._clock())

    def flush(self, namespace: bytes | None) -> FlushResult:
        """Drops cached blocks that nobody holds; None: of every namespace."""
        return self._manager.flush(namespace)

    def lookup(self, namespace: bytes, token_ids: list[int]) -> int:
        """Leading tokens that the prefix index holds."""
        return self._manager.lookup(namespace, token_array(token_ids))

    def resize(self, resize: Resize) -> None:
        """Begins to give the pool another size; the next steps do it, see `take_resized`."""
        self._resizer.order(resize, self._clock())

    @property
    def is_resizing(self) -> bool:
        """Whether `step` has to be called for a resize, though nothing may be there to compute."""
        return self._resizer.is_active

    def take_resized(self) -> list[Resized]:
        """The resizes that have ended, in force or not."""
        return self._resizer.take_answers()

    def step(self) -> StepReport:
        """Computes one step and tells all that happened since the last one."""
        self._resizer.advance(self._clock())
        began_seconds = self._clock()
        plan = self._scheduler.plan(began_seconds)
        self._settle(plan)
        started = [
            Started(s.sequence_id, s.cached_tokens, s.scheduled_seconds) for s in plan.started
        ]
        self._computed = bool(plan.chunks)
        outputs = self._compute(plan.chunks, began_seconds) if plan.chunks else []
        ends = self._live.take_ends()
        return StepReport(
            started=started,
            outputs=outputs,
            finished=ends.finished,
            refused=ends.refused,
            stats=self.stats(),
            failed=ends.failed,
            exhausted=ends.exhausted,
        )

    def stats(self) -> EngineStats:
        """The present numbers; right at any time, also while nothing runs."""
        cache = self._manager.stats()
        scheduler = self._scheduler
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
            steps=self._meter.steps,
            prefill_tokens=self._meter.prefill_tokens,
            decode_tokens=self._meter.decode_tokens,
            lookup_tokens=cache.lookup_tokens,
            hit_tokens=cache.hit_tokens,
            evicted_blocks=cache.evicted_blocks,
            preemptions=cache.preemptions,
            step_seconds=self._meter.step_seconds,
            last_step_seconds=self._meter.last_step_seconds,
            blocks_kept=cache.pinned + cache.loading + cache.storing,
            trims=cache.preemptions_by_mode[PreemptionMode.TRIM],
            swaps=cache.preemptions_by_mode[PreemptionMode.SWAP],
            tiers=self._tiers.figures(),
        )

    # --- one step --------------------------------------------------------------

    def _settle(self, plan: StepPlan) -> None:
        """Ends the sequences that planning found impossible to serve."""
        for sequence, answer in plan.refused:
            self._refuse(sequence, answer.needed_blocks, answer.limit_tokens)
        for sequence in plan.evicted:
            self._live.finish(sequence, FinishReason.EVICTED, self._clock())

    def _compute(self, chunks: list[Chunk], began_seconds: float) -> list[Output]:
        batch = build_batch(chunks, self._manager, self._block_tokens)
        logits = self._runner.forward(batch)
        harvest = self._harvester.take(chunks, logits, self._clock())
        ended_seconds = self._clock()
        self._meter.note(harvest.prefill_tokens, len(harvest.outputs), began_seconds, ended_seconds)
        self._victims.note_step(
            harvest.prefill_tokens, len(batch.token_ids), ended_seconds - began_seconds
        )
        return harvest.outputs

    def _refuse(self, sequence: Sequence, needed_blocks: int, limit_tokens: int) -> None:
        self._live.refuse(sequence, needed_blocks, self._manager.usable_blocks, limit_tokens)
