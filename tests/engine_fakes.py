"""A model whose KV is a hash: any wrong slot, position or block changes what it says.

`FakeRunner` keeps one 64-bit number per slot of a real `Arena`, the hash of (token, position)
that belongs there. The logits of a token are a function of all numbers of its context, *read
through the block table*. `oracle_logits` computes the same from the token list alone. So outputs
agree with the oracle exactly when every block table, slot, position and cached block was right.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache import Arena, CacheManager, KVDtype, KVLayout
from kvcache import PreemptionMode as PlannedMode
from kvcache.memory import ArenaMemory, BlockMemory
from kvcache.tiers import Fingerprint
from kvcache.tiers.offload import Offload
from service.config import EngineSettings
from service.device.arena import DeviceArena
from service.device.cpu import CpuDevice
from service.device.errors import DeviceOutOfMemoryError
from service.device.owner import Owner
from service.engine.caching import make_manager
from service.engine.core import EngineCore
from service.engine.figures import Incident, PreemptionMode, PreemptionReason
from service.engine.messages import (
    Finished,
    Loading,
    Output,
    Predecessor,
    Preempted,
    Readmitted,
    Resized,
    SamplingParams,
    SequenceSpec,
    Started,
    StepReport,
    TokenLogprob,
)
from service.engine.runner import StepBatch
from service.engine.sampler import SamplerState, sample, token_logprob

POISON = np.uint64(0xFFFF_FFFF_FFFF_FFFF)  # nothing is in the slot
_MIX = np.uint64(0xBF58_476D_1CE4_E5B9)
_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)


def _scramble(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(31))) * _MIX
    values = (values ^ (values >> np.uint64(29))) * _GOLDEN
    return values ^ (values >> np.uint64(32))


def kv_of(token_ids: NDArray[np.int32], positions: NDArray[np.int32]) -> NDArray[np.uint64]:
    """What belongs into the slots of these tokens."""
    token_part = _scramble(token_ids.astype(np.uint64) + _GOLDEN)
    return _scramble(token_part + positions.astype(np.uint64) * _MIX)


def logits_of(context_kv: NDArray[np.uint64], vocab_size: int) -> NDArray[np.float32]:
    """Logits [V] after a context, in [-4, 4); every entry and its place matter."""
    places = _scramble(np.arange(1, len(context_kv) + 1, dtype=np.uint64))
    digest = (context_kv * (places | np.uint64(1))).sum(dtype=np.uint64)
    words = _scramble(np.arange(vocab_size, dtype=np.uint64) * _GOLDEN ^ digest)
    return ((words >> np.uint64(40)).astype(np.float32) / np.float32(1 << 21)) - np.float32(4)


def oracle_logits(token_ids: list[int], vocab_size: int) -> NDArray[np.float32]:
    """Logits [V] for the token after `token_ids`."""
    tokens = np.array(token_ids, np.int32)
    return logits_of(kv_of(tokens, np.arange(len(tokens), dtype=np.int32)), vocab_size)


def oracle_output(spec: SequenceSpec, vocab_size: int, max_context_tokens: int) -> list[int]:
    """The whole output of a sequence that runs alone, without any engine."""
    tokens, output = [*spec.prompt_ids], [*spec.output_ids]
    state = SamplerState(spec)
    while len(output) < spec.max_tokens and len(tokens) + len(output) < max_context_tokens:
        (sampled,) = sample(oracle_logits(tokens + output, vocab_size)[None], [state])
        output.append(sampled.token_id)
        if sampled.token_id in (*spec.eos_ids, *spec.stop_ids):
            break
    return output


class FakeRunner:
    """Implements `Runner` and checks every batch it gets."""

    def __init__(
        self, num_blocks: int, block_tokens: int, vocab_size: int, max_blocks: int | None = None
    ) -> None:
        self._block_tokens = block_tokens
        self._vocab_size = vocab_size
        self.arena = Arena(KVLayout(1, 1, 1, block_tokens, KVDtype.FLOAT32), num_blocks, max_blocks)
        self._kv = np.frombuffer(self.arena.buffer, np.uint64)
        self.poison(range(num_blocks))
        self.batches: list[StepBatch] = []
        self.computed_tokens = 0

    @property
    def vocab_size(self) -> int:
        """Number of logits per row."""
        return self._vocab_size

    def poison(self, blocks: Iterable[int]) -> None:
        """Makes the next read of these blocks fail, unless they are written before."""
        self._kv.reshape(-1, self._block_tokens)[list(blocks)] = POISON

    def scribble(self, slots: NDArray[np.int64]) -> None:
        """Writes to slots what belongs to no token."""
        self._kv[slots] = _GOLDEN

    def forward(self, batch: StepBatch) -> NDArray[np.float32]:
        """Writes hashes, reads contexts through the block tables, answers logits."""
        self._check(batch)
        self.batches.append(batch)
        self.computed_tokens += len(batch.token_ids)
        self._kv[batch.slots] = kv_of(batch.token_ids, batch.positions)
        owners = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        logits = np.empty((len(batch.logit_rows), self._vocab_size), np.float32)
        for row, (flat, owner) in enumerate(zip(batch.logit_rows, owners, strict=True)):
            context = np.arange(batch.positions[flat] + 1)
            blocks = batch.block_tables[owner][context // self._block_tokens].astype(np.int64)
            kv = self._kv[blocks * self._block_tokens + context % self._block_tokens]
            is_unwritten = (kv == POISON) | (kv == 0)
            assert not is_unwritten.any(), "a context reads a slot that was never written"
            logits[row] = logits_of(kv, self._vocab_size)
        return logits

    def step_bytes(self, tokens: int, logit_rows: int, context_tokens: int) -> int:
        """Numbers that tell the three apart."""
        return 1000 * tokens + 100 * logit_rows + context_tokens

    def _check(self, batch: StepBatch) -> None:
        tokens = len(batch.token_ids)
        assert tokens == len(batch.positions) == len(batch.slots) == batch.query_starts[-1]
        assert len(batch.query_starts) == len(batch.context_lens) + 1 == len(batch.block_tables) + 1
        assert (np.diff(batch.query_starts) > 0).all()
        assert len(np.unique(batch.slots)) == tokens, "two tokens share a slot"
        assert (batch.slots >= self._block_tokens).all(), "a write to the null block"
        assert ((batch.token_ids >= 0) & (batch.token_ids < self._vocab_size)).all()
        last = batch.query_starts[1:] - 1
        assert (batch.positions[last] + 1 == batch.context_lens).all()
        assert (np.diff(batch.logit_rows) > 0).all()


@dataclass(frozen=True)
class FakeBuilt:
    """Has the attributes of `BuiltRunner`."""

    runner: FakeRunner
    layout: KVLayout
    num_blocks: int
    ceiling_blocks: int
    max_context_tokens: int
    vocab_size: int
    device: CpuDevice
    arena: DeviceArena
    fingerprint: Fingerprint
    model_version: str = "fake"
    weights_dtype: str = "none"
    kv_dtype: str = "float32"
    device_name: str = "fake"
    attention_backend: str = "hash"


def build_fake(
    settings: EngineSettings,
    progress: Callable[[Loading], None],
    _beat: Callable[[], None],
    _predecessor: Predecessor | None = None,
    vocab_size: int = 256,
) -> FakeBuilt:
    """Stands in for `build_runner`: same arguments, no model, no torch."""
    num_blocks = (settings.kv_blocks or 256) + 1
    progress(Loading("kv pool", num_blocks, num_blocks, "blocks"))
    max_blocks = None
    if settings.kv_memory_max_bytes is not None:
        max_blocks = settings.kv_memory_max_bytes // (8 * settings.block_tokens)
    runner = FakeRunner(num_blocks, settings.block_tokens, vocab_size, max_blocks)
    device = CpuDevice()
    return FakeBuilt(
        runner=runner,
        layout=runner.arena.layout,
        num_blocks=num_blocks,
        ceiling_blocks=num_blocks - 1,
        max_context_tokens=settings.max_context_tokens or 4096,
        vocab_size=vocab_size,
        device=device,
        arena=DeviceArena(runner.arena, device, headroom_bytes=0),
        fingerprint=Fingerprint(weights="fake", rope="none", layout=runner.arena.layout),
    )


def spec_of(
    sequence_id: int,
    prompt: Iterable[int],
    max_tokens: int = 16,
    sampling: SamplingParams | None = None,
    **fields: Any,
) -> SequenceSpec:
    """A sequence, greedy unless `sampling` says otherwise."""
    return SequenceSpec(
        sequence_id=sequence_id,
        prompt_ids=list(prompt),
        output_ids=fields.pop("output_ids", []),
        sampling=sampling or SamplingParams(temperature=0.0),
        max_tokens=max_tokens,
        **fields,
    )


def roomy_device(limit_bytes: int = 1 << 40) -> CpuDevice:
    """A device that has so much, whatever the machine has."""
    return CpuDevice(limit_bytes, available_bytes=lambda: 1 << 50, machine_bytes=lambda: 1 << 50)


class EngineHarness:
    """An `EngineCore` over a `FakeRunner`, stepped by hand, with everything it said."""

    def __init__(
        self,
        blocks: int = 256,
        block_tokens: int = 16,
        vocab_size: int = 256,
        max_context_tokens: int = 4096,
        max_blocks: int | None = None,
        ceiling_blocks: int | None = None,
        offload: Callable[[CacheManager, BlockMemory, Callable[[], float]], Offload] | None = None,
        device: CpuDevice | None = None,
        **settings: Any,
    ) -> None:
        """`max_blocks`: what the pool can grow to, `blocks` unless given; a roomy `device`, too."""
        self.vocab_size = vocab_size
        self.max_context_tokens = max_context_tokens
        self.runner = FakeRunner(blocks + 1, block_tokens, vocab_size, (max_blocks or blocks) + 1)
        memory = ArenaMemory(self.runner.arena)
        self.now_seconds = 100.0
        engine_settings = EngineSettings(block_tokens=block_tokens, **settings)
        self.manager = make_manager(
            engine_settings, blocks + 1, memory, clock=lambda: self.now_seconds
        )
        self.device = device or roomy_device()
        self.incidents: list[Incident] = []
        self.pool_when_told: list[int] = []  # usable blocks at each incident
        self.core = EngineCore(
            self.runner,
            self.manager,
            DeviceArena(self.runner.arena, self.device, headroom_bytes=0),
            engine_settings,
            max_context_tokens,
            ceiling_blocks=ceiling_blocks,
            device=self.device,
            tell=self._hear,
            offload=offload(self.manager, memory, lambda: self.now_seconds) if offload else None,
            clock=lambda: self.now_seconds,
        )
        self.reports: list[StepReport] = []
        self.resized: list[Resized] = []
        self.preemptions: list[tuple[int, int]] = []  # (number of the report, sequence)
        # Which steps, by number, the device has no memory for.
        self.fails_step: Callable[[int], bool] = lambda _: False
        self._fail_some_steps()
        self._preempt = self.manager.preempt
        self.manager.preempt = self._note_preemption  # type: ignore[method-assign]

    def _hear(self, incident: Incident) -> None:
        self.incidents.append(incident)
        self.pool_when_told.append(self.manager.usable_blocks)

    def _note_preemption(self, sequence_id: int, **how: Any) -> PlannedMode:
        self.preemptions.append((len(self.reports), sequence_id))
        return self._preempt(sequence_id, **how)

    def let_steps_last(self, seconds_per_token: float) -> None:
        """Lets time pass while the runner computes, so that the engine measures its speed."""
        forward = self.runner.forward

        def slow_forward(batch: StepBatch) -> NDArray[np.float32]:
            self.now_seconds += seconds_per_token * len(batch.token_ids)
            return forward(batch)

        self.runner.forward = slow_forward  # type: ignore[method-assign]

    def _fail_some_steps(self) -> None:
        """A step that fails has written nonsense to some slots, as one that stops in its middle."""
        forward = self.runner.forward
        numbers = itertools.count()

        def failing_forward(batch: StepBatch) -> NDArray[np.float32]:
            number = next(numbers)
            if not self.fails_step(number):
                return forward(batch)
            self.runner.scribble(batch.slots[number % 2 :: 2])
            raise DeviceOutOfMemoryError(Owner.ACTIVATIONS, 1000, 999, 1 << 20)

        self.runner.forward = failing_forward  # type: ignore[method-assign]

    def step(self) -> StepReport:
        """One step, a second long; checks the manager from top to bottom afterwards."""
        self.now_seconds += 1.0
        report = self.core.step()
        self.manager.audit()
        self.reports.append(report)
        self.resized.extend(self.core.take_resized())
        return report

    def run(self, max_steps: int = 10_000) -> None:
        """Steps until nothing is left; fails if that takes more than `max_steps`."""
        for _ in range(max_steps):
            if not (self.core.has_work or self.core.is_resizing):
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def run_until(self, condition: Callable[[], object], max_steps: int = 1000) -> None:
        """Steps until something holds; fails if that takes more than `max_steps`."""
        for _ in range(max_steps):
            if condition():
                return
            self.step()
        raise AssertionError(f"still not so after {max_steps} steps")

    def ended(self, *sequence_ids: int) -> bool:
        """Whether these have all finished."""
        said = {end.sequence_id for report in self.reports for end in report.finished}
        return said.issuperset(sequence_ids)

    def outputs(self, sequence_id: int) -> list[Output]:
        """All outputs of one sequence so far."""
        return [o for r in self.reports for o in r.outputs if o.sequence_id == sequence_id]

    def output(self, sequence_id: int) -> list[int]:
        """All tokens of one sequence so far."""
        return [token for output in self.outputs(sequence_id) for token in output.token_ids]

    def output_steps(self, sequence_id: int) -> list[int]:
        """Numbers of the reports in which it said something."""
        return [
            number
            for number, report in enumerate(self.reports)
            if any(output.sequence_id == sequence_id for output in report.outputs)
        ]

    def assert_every_preemption_is_paid_with_a_token(self) -> None:
        """No sequence is preempted twice without output in between."""
        for sequence_id in {sequence_id for _, sequence_id in self.preemptions}:
            said = self.output_steps(sequence_id)
            at = [step for step, victim in self.preemptions if victim == sequence_id]
            for first, second in itertools.pairwise(at):
                assert any(first <= step < second for step in said), (sequence_id, first, second)

    def assert_moves_are_told(self) -> None:
        """Each preemption once, with its reason, and then either a return or the end."""
        moves = [move for report in self.reports for move in report.moves]
        losses = [move for move in moves if isinstance(move, Preempted)]
        assert sorted(loss.sequence_id for loss in losses) == sorted(i for _, i in self.preemptions)
        counts = self.core.stats().preemption_counts
        kinds = itertools.product(PreemptionMode, PreemptionReason)
        told = collections.Counter((loss.mode, loss.reason) for loss in losses)
        assert counts == tuple(told[kind] for kind in kinds)
        by_mode = self.manager.stats().preemptions_by_mode
        for mode in PreemptionMode:
            count = sum(loss.mode is mode for loss in losses)
            assert count == by_mode[PlannedMode[mode.name]]
        for sequence_id in {move.sequence_id for move in moves}:
            own = [type(move) for move in moves if move.sequence_id == sequence_id]
            assert own == [Preempted, Readmitted] * (len(own) // 2) + [Preempted] * (len(own) % 2)
        computed = sum(chunk.tokens for report in self.reports for chunk in report.prefilled)
        assert computed == self.core.stats().prefill_tokens

    def started(self, sequence_id: int) -> Started:
        """The one start of a sequence."""
        (start,) = (s for r in self.reports for s in r.started if s.sequence_id == sequence_id)
        return start

    def finished(self, sequence_id: int) -> Finished:
        """The one end of a sequence."""
        (end,) = (f for r in self.reports for f in r.finished if f.sequence_id == sequence_id)
        return end

    def oracle(self, spec: SequenceSpec) -> list[int]:
        """What the sequence says when it runs alone."""
        return oracle_output(spec, self.vocab_size, self.max_context_tokens)

    def oracle_prompt_logprobs(self, spec: SequenceSpec) -> list[TokenLogprob]:
        """Its prompt logprobs, one forward pass of the whole prefix for each."""
        assert spec.sampling.prompt_logprobs is not None
        return [
            token_logprob(
                oracle_logits(spec.prompt_ids[:end], self.vocab_size),
                spec.prompt_ids[end],
                spec.sampling.prompt_logprobs,
            )
            for end in range(1, len(spec.prompt_ids))
        ]
