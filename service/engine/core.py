"""The engine without its socket: sequences in, one `StepReport` per step out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvcache import CacheManager, PreemptionMode
from kvcache.tokens import token_array
from service.config.tenants import parse_tenant_shares
from service.engine.batch import build_batch
from service.engine.figures import EngineStats
from service.engine.messages import (
    Failed,
    Finished,
    FinishReason,
    Output,
    Refused,
    Resize,
    Resized,
    SequenceSpec,
    Started,
    StepReport,
)
from service.engine.policy import Chunk, SchedulerLimits, headroom_blocks
from service.engine.request import Sequence, SequenceState
from service.engine.resize import ElasticMemory, PoolResizer
from service.engine.runner import Runner
from service.engine.sampler import sample, token_logprob, unusable_logits
from service.engine.scheduler import Scheduler
from service.engine.sequence_tiers import SequenceTiers
from service.engine.step_plan import StepPlan
from service.engine.tenancy import Tenancy
from service.engine.victims import VictimChooser

if TYPE_CHECKING:
    from kvcache import FlushResult
    from kvcache.tiers.offload import Offload
    from service.config import EngineSettings

_STEP_SECONDS_WEIGHT = 0.1  # of the newest step in the moving average


class DuplicateSequence(Exception):
    """A sequence id was submitted while a sequence of that id is live."""

    def __init__(self, sequence_id: int) -> None:
        self.sequence_id = sequence_id
        super().__init__(f"sequence {sequence_id} is live already")


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
        self._live: dict[int, Sequence] = {}
        self._arrivals = 0
        self._finished: list[Finished] = []  # to be told with the next report
        self._refused: list[Refused] = []
        self._failed: list[Failed] = []
        self._computed = False  # whether the last step had something to compute
        self._steps = 0
        self._prefill_tokens = 0
        self._decode_tokens = 0
        self._step_seconds = 0.0
        self._last_step_seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute or to tell."""
        return bool(self._scheduler.has_work or self._finished or self._refused)

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
            if spec.sequence_id in self._live:
                raise DuplicateSequence(spec.sequence_id)
            sequence = Sequence(spec, self._arrivals)
            self._arrivals += 1
            self._live[spec.sequence_id] = sequence
            if sequence.prompt_tokens >= self._max_context_tokens:
                needed_blocks = -(-sequence.num_tokens // self._block_tokens)
                self._refuse(sequence, needed_blocks, self._max_context_tokens - 1)
            elif reason := sequence.finish_reason(self._max_context_tokens):
                self._finish(sequence, reason)  # nothing was left to do when its engine died
            else:
                self._scheduler.submit(sequence)

    def abort(self, sequence_ids: Iterable[int]) -> None:
        """Ends sequences, in whatever state, and frees their blocks; unknown ids are ignored."""
        for sequence_id in sequence_ids:
            sequence = self._live.get(sequence_id)
            if sequence is not None:
                self._scheduler.remove(sequence)
                self._finish(sequence, FinishReason.CANCELLED)

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
        outputs: list[Output] = []
        self._computed = bool(plan.chunks)
        if plan.chunks:
            batch = build_batch(plan.chunks, self._manager, self._block_tokens)
            logits = self._runner.forward(batch)
            prefilled_before = self._prefill_tokens
            outputs = self._sample(plan.chunks, logits)
            self._decode_tokens += len(outputs)
            self._steps += 1
            seconds = self._time_step(began_seconds)
            prefill_tokens = self._prefill_tokens - prefilled_before
            self._victims.note_step(prefill_tokens, len(batch.token_ids), seconds)
        finished, self._finished = self._finished, []
        refused, self._refused = self._refused, []
        failed, self._failed = self._failed, []
        return StepReport(started, outputs, finished, refused, self.stats(), failed)

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
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
            lookup_tokens=cache.lookup_tokens,
            hit_tokens=cache.hit_tokens,
            evicted_blocks=cache.evicted_blocks,
            preemptions=cache.preemptions,
            step_seconds=self._step_seconds,
            last_step_seconds=self._last_step_seconds,
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
            self._finish(sequence, FinishReason.EVICTED)

    def _sample(self, chunks: list[Chunk], logits: NDArray[np.float32]) -> list[Output]:
        """Publishes the chunks and chooses tokens where a chunk reached the end."""
        last_rows, choosing = [], []
        next_row = 0
        for chunk in chunks:
            first_row = next_row
            token_row = first_row + len(chunk.logprob_positions)
            next_row = token_row + chunk.wants_token
            if chunk.sequence.state is SequenceState.PREFILL:
                self._prefill_tokens += chunk.count
            if bad_values := unusable_logits(logits[first_row:next_row]):
                self._fail(chunk, bad_values)
                continue
            self._take_prompt_logprobs(chunk, logits[first_row:token_row])
            self._scheduler.computed(chunk)
            if chunk.wants_token:
                last_rows.append(token_row)
                choosing.append(chunk.sequence)
        if not choosing:
            return []
        picked = logits if len(last_rows) == len(logits) else logits[last_rows]
        outputs = []
        for sequence, sampled in zip(
            choosing, sample(picked, [s.sampler for s in choosing]), strict=True
        ):
            sequence.append(sampled.token_id)
            outputs.append(
                Output(
                    sequence_id=sequence.sequence_id,
                    token_ids=[sampled.token_id],
                    logprobs=None if sampled.logprob is None else [sampled.logprob],
                    prompt_logprobs=sequence.take_prompt_logprobs(),
                )
            )
            reason = sequence.finish_reason(self._max_context_tokens)
            if reason is not None:
                self._scheduler.remove(sequence)
                self._finish(sequence, reason)
        return outputs

    def _take_prompt_logprobs(self, chunk: Chunk, rows: NDArray[np.float32]) -> None:
        """Keeps the prompt logprobs of a chunk; a row [V] for each of its positions."""
        sequence = chunk.sequence
        alternatives = sequence.spec.sampling.prompt_logprobs
        if alternatives is None:
            return
        sequence.prompt_logprobs.extend(
            token_logprob(row, int(sequence.token_ids[position + 1]), alternatives)
            for row, position in zip(rows, chunk.logprob_positions, strict=True)
        )

    def _fail(self, chunk: Chunk, bad_values: int) -> None:
        """Ends a sequence whose logits are not finite, and nobody else.

        Its K and V may be what is broken, some of them published by earlier steps. Nobody
        can tell which, so its whole namespace leaves the prefix index: else the next
        request with this prefix would fail on them again.
        """
        sequence = chunk.sequence
        self._scheduler.remove(sequence)
        self._manager.flush(sequence.spec.namespace)
        sequence.state = SequenceState.FINISHED
        del self._live[sequence.sequence_id]
        self._failed.append(
            Failed(
                sequence.sequence_id,
                f"{bad_values} logits after token {chunk.end} of {sequence.num_tokens} "
                "are not finite",
            )
        )

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        del self._live[sequence.sequence_id]
        self._finished.append(sequence.finished(reason, self._clock()))

    def _refuse(self, sequence: Sequence, needed_blocks: int, limit_tokens: int) -> None:
        del self._live[sequence.sequence_id]
        total_blocks = self._manager.usable_blocks
        self._refused.append(
            Refused(sequence.sequence_id, needed_blocks, total_blocks, limit_tokens)
        )

    def _time_step(self, began_seconds: float) -> float:
        """Averages the duration of steps; answers that of this one."""
        self._last_step_seconds = self._clock()
        seconds = self._last_step_seconds - began_seconds
        if self._steps == 1:
            self._step_seconds = seconds
        else:
            self._step_seconds += _STEP_SECONDS_WEIGHT * (seconds - self._step_seconds)
        return seconds
