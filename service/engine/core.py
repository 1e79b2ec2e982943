"""The engine without its socket: sequences in, one `StepReport` per step out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kvcache import CacheManager
from kvcache.tokens import token_array
from service.config.tenants import parse_tenant_shares
from service.device.errors import DeviceLostError, DeviceOutOfMemoryError
from service.engine.batch import build_batch
from service.engine.demand import Demand
from service.engine.figures import EngineStats, Incident
from service.engine.governor import Governor
from service.engine.growth import Growth
from service.engine.harvest import Harvest, Harvester
from service.engine.ladder import OomLadder
from service.engine.live_sequences import LiveSequences
from service.engine.memory_watch import MemoryWatch
from service.engine.messages import (
    FinishReason,
    Resize,
    Resized,
    SequenceSpec,
    Started,
    StepReport,
)
from service.engine.policy import Chunk, SchedulerLimits, headroom_blocks
from service.engine.recovery import OomRecovery, Shortage
from service.engine.request import Sequence
from service.engine.resize import ElasticMemory, PoolResizer
from service.engine.runner import Runner
from service.engine.scheduler import Scheduler
from service.engine.sequence_tiers import SequenceTiers
from service.engine.stats import engine_stats
from service.engine.step_meter import StepMeter
from service.engine.step_plan import StepPlan
from service.engine.tenancy import Tenancy
from service.engine.victims import VictimChooser

if TYPE_CHECKING:
    from kvcache import FlushResult
    from kvcache.tiers.offload import Offload
    from service.config import EngineSettings
    from service.device.memory import DeviceMemory


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
        ceiling_blocks: int | None = None,
        device: DeviceMemory,
        tell: Callable[[Incident], None],
        offload: Offload | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` hears at once of each step for which the device had no memory.

        `ceiling_blocks` is how many usable blocks the pool is to have as soon as it can; None: as
        many as it has.
        """
        self._runner = runner
        self._manager = manager
        self._block_tokens = settings.block_tokens
        self._max_context_tokens = max_context_tokens
        self._clock = clock
        self._tiers = SequenceTiers(settings.block_tokens, offload)
        tenancy = Tenancy(manager, parse_tenant_shares(settings.tenant_shares or ""))
        self._victims = VictimChooser(manager, memory.layout.block_bytes, self._tiers, tenancy)
        limits = SchedulerLimits(
            max_running_sequences=settings.max_running_sequences,
            max_step_tokens=settings.max_step_tokens,
            prefill_chunk_tokens=settings.prefill_chunk_tokens,
            headroom_blocks=headroom_blocks(manager.usable_blocks, settings.load_line),
            max_skips=settings.max_admission_skips,
            prompt_logprob_rows=settings.prompt_logprob_rows,
        )
        self._scheduler = Scheduler(manager, limits, self._victims, self._tiers)
        self._meter = StepMeter()
        growth = Growth(manager, self._scheduler, self._meter, max_context_tokens)
        self._live = LiveSequences(growth.learn)
        self._harvester = Harvester(manager, self._scheduler, self._live, max_context_tokens)
        self._resizer = PoolResizer(
            manager,
            memory,
            self._scheduler,
            tenancy,
            settings.load_line,
            settings.pool_wait_seconds,
            ceiling_blocks,
        )
        self._ladder = OomLadder(settings.max_step_tokens, settings.pool_wait_seconds)
        self._watch = MemoryWatch(
            device,
            manager,
            self._scheduler,
            self._resizer,
            Governor(
                settings.pressure_elevated_share,
                settings.pressure_high_share,
                settings.max_step_tokens,
            ),
            self._ladder,
            Demand(runner, limits, self._scheduler),
            growth,
            memory.layout.block_bytes,
        )
        self._recovery = OomRecovery(
            self._ladder, device, self._watch, self._scheduler, self._live, tell
        )
        self._chunks: list[Chunk] = []  # of the last step
        self._stalled_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute or to tell."""
        return self._scheduler.has_work or self._live.has_ends

    @property
    def stalled_steps(self) -> int:
        """Last steps in a row with nothing to compute: a load, a pin or a resize has to end, or
        others have to give back memory.
        """
        return self._stalled_steps

    def rest(self) -> None:
        """To be called now and then while there is no work: looks at memory and at deadlines."""
        self._watch.look(self._clock())
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
        began_seconds = self._clock()
        self._watch.look(began_seconds)
        self._resizer.advance(began_seconds)
        is_resting = self._ladder.is_resting(began_seconds)
        plan = StepPlan() if is_resting else self._scheduler.plan(began_seconds)
        self._chunks = plan.chunks
        self._stalled_steps = 0 if plan.chunks else self._stalled_steps + 1
        self._settle(plan)
        started = [
            Started(s.sequence_id, s.cached_tokens, s.scheduled_seconds) for s in plan.started
        ]
        harvest = self._compute(plan.chunks, began_seconds) if plan.chunks else Harvest()
        ends = self._live.take_ends()
        return StepReport(
            started=started,
            outputs=harvest.outputs,
            finished=ends.finished,
            refused=ends.refused,
            stats=self.stats(),
            failed=ends.failed,
            exhausted=ends.exhausted,
            prefilled=harvest.prefilled,
            moves=self._scheduler.take_moves(),
        )

    def stats(self) -> EngineStats:
        """The present numbers; right at any time, also while nothing runs."""
        vitals = self._watch.vitals
        return engine_stats(self._manager, self._scheduler, self._meter, self._tiers, vitals)

    def last_words(self, error: Exception) -> Incident:
        """What to tell of an error that this process does not outlive."""
        return Incident(
            kind="device lost" if isinstance(error, DeviceLostError) else "defect",
            cause=f"{type(error).__name__}: {error}",
            rung=None,
            wanted_bytes=0,
            sequence_ids=[chunk.sequence.sequence_id for chunk in self._chunks],
            step_tokens=sum(chunk.count for chunk in self._chunks),
            vitals=self._watch.vitals,
        )

    # --- one step --------------------------------------------------------------

    def _settle(self, plan: StepPlan) -> None:
        """Ends the sequences that planning found impossible to serve."""
        for sequence, answer in plan.refused:
            self._refuse(sequence, answer.needed_blocks, answer.limit_tokens)
        for sequence in plan.evicted:
            self._live.finish(sequence, FinishReason.EVICTED, self._clock())

    def _compute(self, chunks: list[Chunk], began_seconds: float) -> Harvest:
        """What the step gave; nothing when the device had no memory for it."""
        batch = build_batch(chunks, self._manager, self._block_tokens)
        shortage: Shortage | None = None
        try:
            logits = self._runner.forward(batch)
        except DeviceOutOfMemoryError as error:
            shortage = Shortage.of(error)
        # The error is gone by now, and with it what its traceback held.
        if shortage is not None:
            self._recovery.answer(shortage, chunks, self._clock())
            return Harvest()
        harvest = self._harvester.take(chunks, logits, self._clock())
        ended_seconds = self._clock()
        self._meter.note(harvest.prefill_tokens, len(harvest.outputs), began_seconds, ended_seconds)
        self._victims.note_step(
            harvest.prefill_tokens, len(batch.token_ids), ended_seconds - began_seconds
        )
        self._ladder.succeeded(len(batch.token_ids))
        return harvest

    def _refuse(self, sequence: Sequence, needed_blocks: int, limit_tokens: int) -> None:
        self._live.refuse(sequence, needed_blocks, self._manager.usable_blocks, limit_tokens)
