"""Whatever arrives, leaves or runs out: outputs are those of the model alone, nothing leaks.

Random arrivals, aborts, priorities, tenants, shared prefixes, chunk sizes, a host tier, and
pools so small that preemption is the rule. The model's KV is a hash (see `engine_fakes`), so
one wrong block table, slot or stale block changes an output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from engine_fakes import EngineHarness, spec_of
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from kvcache import CacheManager, KVDtype, KVLayout
from kvcache.memory import BlockMemory
from kvcache.tiers import Fingerprint
from kvcache.tiers.host import HostTier
from kvcache.tiers.loads import LoadLimits
from kvcache.tiers.offload import Offload
from service.config.tenants import parse_tenant_shares
from service.engine.messages import FinishReason, SamplingParams, SequenceSpec
from service.engine.tenancy import shares_in_blocks

pytestmark = pytest.mark.slow

VOCAB = 50
MAX_CONTEXT_TOKENS = 60


@dataclass(frozen=True)
class Arrival:
    """One sequence, the step it comes in and, if its client gives up, the step it is aborted."""

    spec: SequenceSpec
    step: int
    abort_step: int | None


@dataclass(frozen=True)
class World:
    """Settings of an engine."""

    blocks: int
    block_tokens: int
    settings: dict[str, float]
    tenant_shares: str | None = None
    host_blocks: int = 0  # of a tier below the pool
    seconds_per_token: float = 0.0  # from which preemption rates follow

    def harness(self) -> EngineHarness:
        harness = EngineHarness(
            blocks=self.blocks,
            block_tokens=self.block_tokens,
            vocab_size=VOCAB,
            max_context_tokens=MAX_CONTEXT_TOKENS,
            offload=self.offload if self.host_blocks else None,
            tenant_shares=self.tenant_shares,
            **self.settings,
        )
        harness.let_steps_last(self.seconds_per_token)
        return harness

    def offload(
        self, manager: CacheManager, memory: BlockMemory, clock: Callable[[], float]
    ) -> Offload:
        layout = KVLayout(1, 1, 1, self.block_tokens, KVDtype.FLOAT32)
        host = HostTier(layout.block_bytes, self.host_blocks * layout.block_bytes)
        looks = itertools.count()
        return Offload(
            manager,
            memory,
            Fingerprint("fake", "none", layout).digest,
            host,
            limits=LoadLimits(min_blocks=1, poll_bytes=3 * layout.block_bytes),
            clock=lambda: clock() + next(looks) * 1e-6,  # copies take time, too
        )

    def is_possible(self, tenant: str, tokens: int) -> bool:
        """Whether a sequence may ever hold so many tokens."""
        return math.ceil(tokens / self.block_tokens) <= self.limit_blocks(tenant)

    def limit_blocks(self, tenant: str) -> int:
        percents = parse_tenant_shares(self.tenant_shares or "")
        shares = shares_in_blocks(percents, self.blocks)
        floors = sum(share.floor_blocks for name, share in shares.items() if name != tenant)
        share = shares.get(tenant)
        quota = self.blocks if share is None else share.quota_blocks or self.blocks
        return min(quota, self.blocks - floors)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    block_tokens = draw(st.sampled_from([1, 2, 4, 16]))
    pool_tokens = draw(st.sampled_from([10, 40, 60, 60, 60, 120]))
    blocks = max(1, pool_tokens // block_tokens + draw(st.integers(-2, 2)))
    return World(
        blocks=blocks,
        block_tokens=block_tokens,
        settings={
            "max_running_sequences": draw(st.sampled_from([1, 2, 3, 4, 8, 8])),
            "max_step_tokens": draw(st.one_of(st.integers(1, 64), st.integers(9, 64))),
            "prefill_chunk_tokens": draw(st.integers(1, 40)),
            "load_line": draw(st.sampled_from([0.5, 1.0, 1.0, 1.0])),
            "max_admission_skips": draw(st.integers(0, 3)),
            "prompt_logprob_rows": draw(st.integers(1, 16)),
        },
        tenant_shares=draw(st.sampled_from([None, None, "a=0-50", "a=40-100", "a=30-60,b=20-100"])),
        host_blocks=draw(st.sampled_from([0, 0, 1, 8, 64])),
        seconds_per_token=draw(st.sampled_from([0.0, 0.01, 1e-6])),
    )


SAMPLINGS = st.one_of(
    st.just(SamplingParams(temperature=0.0)),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 3.0]),
        top_k=st.sampled_from([0, 1, 7]),
        top_p=st.sampled_from([0.6, 1.0]),
        min_p=st.sampled_from([0.0, 0.05]),
        repetition_penalty=st.sampled_from([1.0, 1.7]),
        presence_penalty=st.sampled_from([0.0, 1.5]),
        frequency_penalty=st.sampled_from([0.0, 0.5]),
        logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5), max_size=2),
        seed=st.integers(0, 2**64 - 1),
        logprobs=st.sampled_from([None, 0, 2]),
        prompt_logprobs=st.sampled_from([None, 0, 2]),
    ),
)


@st.composite
def arrivals(draw: st.DrawFn, sequence_id: int) -> Arrival:
    stem = draw(st.integers(0, 2)) * 10  # prompts of one stem share what they have in common
    shared = [(stem + i) % VOCAB for i in range(draw(st.integers(0, 20)))]
    own = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
    step = draw(st.integers(0, 12))
    tenant = draw(st.sampled_from(["", "", "a", "b"]))
    salt = draw(st.sampled_from([b"", b"", b"salt"]))
    spec = spec_of(
        sequence_id,
        prompt=shared + own,
        max_tokens=draw(st.one_of(st.integers(1, 25), st.integers(10, 45))),
        sampling=draw(SAMPLINGS),
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        eos_ids=draw(st.sampled_from([(), (3,)])),
        stop_ids=draw(st.sampled_from([(), (), (5, 7)])),
        priority=draw(st.integers(-1, 1)),
        tenant=tenant,
        namespace=tenant.encode() + b"/" + salt,
        use_prefix_cache=draw(st.sampled_from([True, True, False])),
        publish_blocks=draw(st.sampled_from([True, True, False])),
        arrival_seconds=float(step),
    )
    aborted = draw(st.sampled_from([False, False, False, False, True]))
    return Arrival(spec, step, step + draw(st.integers(0, 20)) if aborted else None)


@st.composite
def loads(draw: st.DrawFn) -> list[Arrival]:
    return [draw(arrivals(i)) for i in range(draw(st.sampled_from([1, 3, 6, 9])))]


def play(harness: EngineHarness, load: list[Arrival]) -> None:
    """Runs a load to its end; every step is audited by the harness."""
    last_event = max(max(a.step, a.abort_step or 0) for a in load)
    work_tokens = sum(len(a.spec.prompt_ids) + a.spec.max_tokens for a in load)
    # Every admission gives a token, so a sequence is computed at most max_tokens + 1 times.
    bound = last_event + work_tokens * (2 + max(a.spec.max_tokens for a in load))
    for step in range(bound):
        harness.core.submit([a.spec for a in load if a.step == step])
        harness.core.abort([a.spec.sequence_id for a in load if a.abort_step == step])
        if harness.core.has_work:
            harness.step()
        elif step > last_event:
            return
    raise AssertionError(f"still at work after {bound} steps")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), loads())
def test_outputs_do_not_depend_on_the_schedule_and_nothing_leaks(
    world: World, load: list[Arrival]
) -> None:
    harness = world.harness()
    play(harness, load)

    stats = harness.core.stats()
    events = {"preempted": stats.preemptions, "trimmed": stats.trims, "swapped": stats.swaps}
    events["loaded"] = stats.tiers.loaded_blocks if stats.tiers is not None else 0
    for name, count in events.items():
        if count:
            event(name)
    assert harness.manager.stats().held == 0
    assert harness.manager.stats().live_sequences == 0
    assert harness.manager.stats().expected == 0
    assert harness.core.stats().blocks_kept == 0
    refused = {r.sequence_id for report in harness.reports for r in report.refused}
    for arrival in load:
        check_outcome(harness, world, arrival, refused)


def check_outcome(
    harness: EngineHarness, world: World, arrival: Arrival, refused: set[int]
) -> None:
    spec = arrival.spec
    expected = harness.oracle(spec)
    output = harness.output(spec.sequence_id)
    if spec.sequence_id in refused:
        assert not world.is_possible(spec.tenant, len(spec.prompt_ids))
        assert output == []
        return
    end = harness.finished(spec.sequence_id)
    if end.reason is FinishReason.CANCELLED:
        assert arrival.abort_step is not None
        assert output == expected[: len(output)]
    elif end.reason is FinishReason.EVICTED:
        assert not world.is_possible(spec.tenant, len(spec.prompt_ids) + len(output))
        assert output == expected[: len(output)]
    else:
        assert output == expected
        assert end.reason is expected_reason(spec, output)
    assert end.stop_token_id == (
        output[-1] if end.reason in (FinishReason.EOS, FinishReason.STOP) else None
    )


def expected_reason(spec: SequenceSpec, output: list[int]) -> FinishReason:
    if output[-1] in spec.eos_ids:
        return FinishReason.EOS
    if output[-1] in spec.stop_ids:
        return FinishReason.STOP
    if len(output) == spec.max_tokens:
        return FinishReason.MAX_TOKENS
    return FinishReason.CONTEXT_LENGTH


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), loads())
def test_every_step_keeps_to_its_budgets_and_serves_every_decode(
    world: World, load: list[Arrival]
) -> None:
    harness = world.harness()
    play(harness, load)

    for batch in harness.runner.batches:
        counts = batch.query_starts[1:] - batch.query_starts[:-1]
        assert len(batch.token_ids) <= world.settings["max_step_tokens"]
        assert len(counts) <= world.settings["max_running_sequences"]
        assert counts.max() <= world.settings["prefill_chunk_tokens"]
    ends = {end.sequence_id: end for report in harness.reports for end in report.finished}
    for sequence_id, end in ends.items():
        steps = harness.output_steps(sequence_id)
        gaps = [after - before for before, after in itertools.pairwise(steps)]
        # One token in every step, but for the gap that each preemption makes.
        assert sum(gap > 1 for gap in gaps) <= end.preemptions
    harness.assert_every_preemption_is_paid_with_a_token()
    harness.assert_moves_are_told()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), loads())
def test_prompt_logprobs_are_complete_and_equal_to_those_of_the_model_alone(
    world: World, load: list[Arrival]
) -> None:
    harness = world.harness()
    play(harness, load)

    for arrival in load:
        outputs = harness.outputs(arrival.spec.sequence_id)
        if not outputs:
            continue
        wanted = arrival.spec.sampling.prompt_logprobs is not None
        expected = harness.oracle_prompt_logprobs(arrival.spec) if wanted else None
        assert outputs[0].prompt_logprobs == expected
        assert all(output.prompt_logprobs is None for output in outputs[1:])
