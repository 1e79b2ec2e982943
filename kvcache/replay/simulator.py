"""An engine without a model: continuous batching over the real cache manager.

First come, first served: a sequence that does not fit makes those behind it wait. Two things
pass: sequences that were preempted go first, and one whose prefix another sequence computes
right now waits for that while others start. Running short of blocks preempts as
`kvcache.preemption` plans it, without a host to swap to.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvcache.admission import AdmissionRequest, Fits, NeverFits, NotNow
from kvcache.manager import CacheManager
from kvcache.preemption import Preemption, VictimCandidate, plan_preemption
from kvcache.rates import PreemptionRates
from kvcache.replay.report import (
    CacheFigures,
    ReplayReport,
    RequestFigures,
    Spread,
    TimelineSample,
)
from kvcache.replay.settings import ReplaySettings
from kvcache.replay.timeline import PoolIntegral, Timeline
from kvcache.replay.tokens import PromptMaker, own_token
from kvcache.replay.trace import TraceRequest

_NAMESPACE = b""
_MOST_DEFERRED = 64  # that are passed over in one step: bounds its work in a long queue


class _End(enum.Enum):
    FINISHED = enum.auto()
    REFUSED = enum.auto()
    OUTGROWN = enum.auto()


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request on its way. `computed` of `known` tokens have K and V."""

    index: int  # in the order of arrival; the id of the sequence
    request: TraceRequest
    arrival_seconds: float
    produced: int = 0  # output tokens
    computed: int = 0
    high_water: int = 0  # most tokens that were ever computed
    preemptions: int = 0
    produced_at_admission: int = 0
    decodes: bool = False  # whether only its newest token is left to compute, without a slot yet
    prompt: NDArray[np.int32] | None = field(default=None, repr=False)  # while it waits

    @property
    def known(self) -> int:
        return self.request.prompt_tokens + self.produced


@dataclass(slots=True)
class _Tally:
    ends: dict[_End, int] = field(default_factory=lambda: dict.fromkeys(_End, 0))
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    queue_seconds: list[float] = field(default_factory=list)
    ttft_seconds: list[float] = field(default_factory=list)
    longest_queue: int = 0


class ReplaySimulator:
    """Plays one trace. Call `step` while `has_work`; then `report`."""

    def __init__(
        self, requests: Sequence[TraceRequest], settings: ReplaySettings, manager: CacheManager
    ) -> None:
        """`manager` is fresh and has the blocks that `settings` says."""
        self._settings = settings
        self._manager = manager
        self._prompts = PromptMaker(settings.trace_block_tokens)
        ordered = sorted(requests, key=lambda request: request.arrival_seconds)
        begin = ordered[0].arrival_seconds if ordered else 0.0
        self._arrivals = deque(
            _Sequence(index, request, (request.arrival_seconds - begin) / settings.speed)
            for index, request in enumerate(ordered)
        )
        self._waiting: deque[_Sequence] = deque()  # preempted ones at the front
        self._running: list[_Sequence] = []  # in order of admission
        self._now_seconds = 0.0
        self._tally = _Tally()
        self._timeline = Timeline()
        self._rates = PreemptionRates(
            settings.block_tokens,
            prefill_tokens_per_second=settings.prefill_tokens_per_second,
            stall_seconds=settings.decode_step_seconds,
        )
        self._pool = PoolIntegral(settings.block_tokens, settings.load_line * manager.usable_blocks)

    @property
    def has_work(self) -> bool:
        """Whether a request is still to come, waits or runs."""
        return bool(self._arrivals or self._waiting or self._running)

    @property
    def ended_requests(self) -> int:
        """Requests that are over, however they ended."""
        return sum(self._tally.ends.values())

    @property
    def now_seconds(self) -> float:
        """Simulated time since the first arrival."""
        return self._now_seconds

    def step(self) -> None:
        """Computes one batch; without sequences, waits for the next arrival first."""
        if not self._running and not self._waiting:
            self._now_seconds = max(self._now_seconds, self._arrivals[0].arrival_seconds)
        self._take_arrivals()
        self._grow_decodes()
        decoding = [sequence for sequence in self._running if sequence.decodes]
        chunks = self._prefill_chunks(self._settings.max_step_tokens - len(decoding))
        if not decoding and not chunks:
            return  # all that waited was refused
        prefill_tokens = sum(count for _, count in chunks)
        seconds = (
            self._settings.decode_step_seconds
            + prefill_tokens / self._settings.prefill_tokens_per_second
        )
        self._account(seconds)
        self._now_seconds += seconds
        for sequence in decoding:
            self._compute(sequence, 1)
        for sequence, count in chunks:
            self._compute(sequence, count)

    def report(self) -> ReplayReport:
        """The figures so far."""
        tally = self._tally
        return ReplayReport(
            requests=RequestFigures(
                finished=tally.ends[_End.FINISHED],
                refused=tally.ends[_End.REFUSED],
                outgrown=tally.ends[_End.OUTGROWN],
                prompt_tokens=tally.prompt_tokens,
                output_tokens=tally.output_tokens,
                preemptions=tally.preemptions,
                recomputed_tokens=tally.recomputed_tokens,
            ),
            cache=CacheFigures.of(self._manager.stats()),
            total_blocks=self._manager.usable_blocks,
            duration_seconds=self._now_seconds,
            waste=self._pool.waste,
            load_line_seconds=self._pool.load_line_seconds,
            queue_seconds=Spread.of(tally.queue_seconds),
            ttft_seconds=Spread.of(tally.ttft_seconds),
            longest_queue=tally.longest_queue,
            timeline=tuple(self._timeline.samples),
        )

    # --- growth and preemption -----------------------------------------------

    def _grow_decodes(self) -> None:
        """Gives the newest token of every decoding sequence a slot, at others' cost if need be."""
        for sequence in tuple(self._running):
            token = own_token(sequence.index)
            # A victim of an earlier one in this loop no longer decodes.
            while sequence.decodes and self._manager.append(sequence.index, token):
                plan = plan_preemption(self._candidates(), 1, self._rates, needy_id=sequence.index)
                if plan is None:
                    self._end(sequence, _End.OUTGROWN)
                    break
                for victim in plan.victims:
                    self._preempt(victim)

    def _candidates(self) -> list[VictimCandidate]:
        return [
            VictimCandidate(
                sequence_id=sequence.index,
                priority=0,
                admitted_serial=serial,
                progressed=not sequence.preemptions
                or sequence.produced > sequence.produced_at_admission,
                blocks=-(-self._manager.num_tokens(sequence.index) // self._settings.block_tokens),
                exclusive_blocks=self._manager.exclusive_blocks(sequence.index),
                computed_tokens=sequence.computed,
                reusable=True,
            )
            for serial, sequence in enumerate(self._running)
        ]

    def _preempt(self, taken: Preemption) -> None:
        self._manager.preempt(taken.sequence_id, keep_blocks=taken.keep_blocks)
        victim = next(s for s in self._running if s.index == taken.sequence_id)
        self._running.remove(victim)
        victim.decodes = False
        victim.preemptions += 1
        self._tally.preemptions += 1
        self._waiting.appendleft(victim)

    # --- admission and prefill -----------------------------------------------

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].arrival_seconds <= self._now_seconds:
            self._waiting.append(self._arrivals.popleft())
        self._tally.longest_queue = max(self._tally.longest_queue, len(self._waiting))

    def _prefill_chunks(self, budget: int) -> list[tuple[_Sequence, int]]:
        """Shares `budget` tokens: those in prefill first, then new ones while blocks last."""
        chunks = []
        for sequence in self._running:
            if budget > 0 and not sequence.decodes:
                count = min(budget, sequence.known - sequence.computed)
                chunks.append((sequence, count))
                budget -= count
        deferred = 0
        for sequence in tuple(self._waiting):
            full = len(self._running) >= self._settings.max_running_sequences
            if full or budget <= 0 or deferred >= _MOST_DEFERRED:
                break
            request = self._admission_request(sequence)
            if self._manager.pending_prefix(request):
                deferred += 1
                continue
            answer = self._manager.admit(request)
            if isinstance(answer, NotNow):
                break
            self._waiting.remove(sequence)
            sequence.prompt = None
            if isinstance(answer, NeverFits):
                self._tally.ends[_End.REFUSED] += 1
                continue
            self._start(sequence, answer)
            count = min(budget, sequence.known - sequence.computed)
            chunks.append((sequence, count))
            budget -= count
        return chunks

    def _admission_request(self, sequence: _Sequence) -> AdmissionRequest:
        if sequence.prompt is None:
            sequence.prompt = self._prompts.prompt(
                sequence.index, sequence.request, sequence.request.prompt_tokens
            )
            if sequence.produced:
                output = np.full(sequence.produced, own_token(sequence.index), np.int32)
                sequence.prompt = np.concatenate((sequence.prompt, output))
        return AdmissionRequest(
            sequence_id=sequence.index,
            token_ids=sequence.prompt,
            namespace=_NAMESPACE,
            headroom_blocks=self._settings.headroom_blocks,
            resumed=sequence.preemptions > 0,
        )

    def _start(self, sequence: _Sequence, fits: Fits) -> None:
        sequence.computed = self._manager.begin(fits)
        sequence.produced_at_admission = sequence.produced
        self._running.append(sequence)
        if sequence.preemptions == 0:
            self._tally.prompt_tokens += sequence.request.prompt_tokens
            self._tally.queue_seconds.append(self._now_seconds - sequence.arrival_seconds)

    # --- the step --------------------------------------------------------------

    def _compute(self, sequence: _Sequence, count: int) -> None:
        """K and V of `count` more tokens are written; after the last known one comes a token."""
        end = sequence.computed + count
        self._tally.recomputed_tokens += max(0, min(end, sequence.high_water) - sequence.computed)
        sequence.computed = end
        sequence.high_water = max(end, sequence.high_water)
        if end % self._settings.block_tokens == 0 or not sequence.decodes:
            # Between two full blocks a commit of one token changes nothing that others see.
            self._manager.commit(sequence.index, end)
        if end < sequence.known:
            return
        if sequence.produced < sequence.request.output_tokens:
            sequence.produced += 1
            self._tally.output_tokens += 1
            sequence.decodes = True
            if sequence.produced == 1:
                self._tally.ttft_seconds.append(self._now_seconds - sequence.arrival_seconds)
        if sequence.produced >= sequence.request.output_tokens:
            self._end(sequence, _End.FINISHED)

    def _end(self, sequence: _Sequence, end: _End) -> None:
        self._manager.release(sequence.index)
        self._running.remove(sequence)
        self._tally.ends[end] += 1

    def _account(self, seconds: float) -> None:
        stats = self._manager.stats()
        unused = sum(
            -self._manager.num_tokens(sequence.index) % self._settings.block_tokens
            for sequence in self._running
        )
        self._pool.add(seconds, stats.held, unused)
        self._timeline.add(
            TimelineSample(
                seconds=self._now_seconds,
                held_blocks=stats.held,
                cached_blocks=stats.cached,
                running=len(self._running),
                waiting=len(self._waiting),
                lookup_tokens=stats.lookup_tokens,
                hit_tokens=stats.hit_tokens,
            )
        )


def replay(requests: Sequence[TraceRequest], settings: ReplaySettings) -> ReplayReport:
    """Plays a trace to its end."""
    manager = CacheManager(settings.num_blocks + 1, settings.block_tokens, policy=settings.policy)
    simulator = ReplaySimulator(requests, settings, manager)
    while simulator.has_work:
        simulator.step()
    return simulator.report()
