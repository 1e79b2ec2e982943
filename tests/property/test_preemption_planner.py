"""The preemption planner on random loads: enough, never dear, and never for ever."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvcache.preemption import (
    PreemptionMode,
    PreemptionPlan,
    VictimCandidate,
    plan_preemption,
)
from kvcache.rates import PreemptionRates

BLOCK_TOKENS = 4


@st.composite
def candidate_lists(draw: st.DrawFn) -> list[VictimCandidate]:
    candidates = []
    for serial in range(draw(st.integers(1, 8))):
        blocks = draw(st.integers(1, 12))
        candidates.append(
            VictimCandidate(
                sequence_id=100 + serial,
                priority=draw(st.integers(-1, 1)),
                admitted_serial=serial,
                progressed=draw(st.sampled_from([True, True, True, False])),
                blocks=blocks,
                exclusive_blocks=draw(st.integers(0, blocks)),
                computed_tokens=draw(st.integers(0, blocks * BLOCK_TOKENS)),
                reusable=draw(st.sampled_from([True, True, False])),
            )
        )
    return draw(st.permutations(candidates))


RATES = st.builds(
    PreemptionRates,
    block_tokens=st.just(BLOCK_TOKENS),
    block_bytes=st.just(100),
    prefill_tokens_per_second=st.sampled_from([None, 10.0, 1000.0]),
    copy_bytes_per_second=st.sampled_from([None, 10.0, 1e5]),
    stall_seconds=st.sampled_from([0.0, 0.01, 1.0]),
)


def recompute_cost(candidate: VictimCandidate, rates: PreemptionRates) -> float:
    tokens = max(0, candidate.computed_tokens - candidate.shared_blocks * BLOCK_TOKENS)
    return rates.stall_seconds + rates.recompute_seconds(tokens)


def last_admitted_cost(
    candidates: list[VictimCandidate], short_blocks: int, rates: PreemptionRates
) -> float:
    """What it costs to preempt by recompute, lowest priority and last admitted first."""
    cost = 0.0
    freed_blocks = 0
    for victim in sorted(candidates, key=lambda c: (c.priority, -c.admitted_serial)):
        cost += recompute_cost(victim, rates)
        freed_blocks += victim.exclusive_blocks
        if freed_blocks >= short_blocks:
            return cost
    raise AssertionError("asked for more than there is")


@settings(max_examples=400, deadline=None)
@given(candidate_lists(), st.integers(0, 30), RATES, st.integers(0, 20))
def test_a_plan_frees_enough_and_costs_no_more_than_what_others_do(
    candidates: list[VictimCandidate],
    short_blocks: int,
    rates: PreemptionRates,
    host_free_blocks: int,
) -> None:
    plan = plan_preemption(
        candidates,
        short_blocks,
        rates,
        host_free_blocks=host_free_blocks,
        all_or_nothing=True,
    )
    progressed = [c for c in candidates if c.progressed]
    possible = sum(c.exclusive_blocks for c in progressed) >= short_blocks
    if not (possible and progressed):
        assert plan is None
        return

    assert plan is not None
    by_id = {c.sequence_id: c for c in progressed}
    taken = [by_id[victim.sequence_id] for victim in plan.victims]
    event(f"{len(taken)} victims")
    assert taken
    assert len({c.sequence_id for c in taken}) == len(taken)
    check_arithmetic(plan, by_id, host_free_blocks)

    assert plan.freed_blocks >= short_blocks
    if len(taken) > 1:  # nobody suffers in vain
        assert all(
            sum(c.exclusive_blocks for c in taken if c is not spared) < short_blocks
            for spared in taken
        )
    highest = max(c.priority for c in taken)
    lower = [c for c in progressed if c.priority < highest]
    assert not lower or sum(c.exclusive_blocks for c in lower) < short_blocks

    tolerance = 1e-9
    assert plan.cost_seconds <= sum(recompute_cost(c, rates) for c in taken) + tolerance
    same_classes = [c for c in progressed if c.priority <= highest]
    bound = last_admitted_cost(same_classes, short_blocks, rates)
    assert plan.cost_seconds <= bound + tolerance


def check_arithmetic(
    plan: PreemptionPlan, by_id: dict[int, VictimCandidate], host_free_blocks: int
) -> None:
    """Every victim gives what it has, and keeps only what is computed and publishable."""
    for victim in plan.victims:
        candidate = by_id[victim.sequence_id]
        event(victim.mode.value)
        assert 0 <= victim.freed_blocks <= candidate.exclusive_blocks
        if victim.mode is PreemptionMode.TRIM:
            assert candidate.reusable
            assert victim.keep_blocks * BLOCK_TOKENS <= candidate.computed_tokens
            assert victim.keep_blocks + victim.freed_blocks == candidate.blocks
        else:
            assert victim.keep_blocks == 0
            assert victim.freed_blocks == candidate.exclusive_blocks
        assert (victim.host_blocks > 0) == (victim.mode is PreemptionMode.SWAP)
    assert sum(victim.host_blocks for victim in plan.victims) <= host_free_blocks


@settings(max_examples=400, deadline=None)
@given(candidate_lists(), RATES, st.data())
def test_a_running_one_always_finds_a_victim_unless_it_runs_alone(
    candidates: list[VictimCandidate], rates: PreemptionRates, data: st.DataObject
) -> None:
    needy = data.draw(st.sampled_from(candidates))
    plan = plan_preemption(candidates, 1, rates, needy_id=needy.sequence_id)
    assert (plan is None) == (len(candidates) == 1)
    if plan is None:
        return
    (victim,) = plan.victims
    progressed = {c.sequence_id for c in candidates if c.progressed}
    oldest = min(candidates, key=lambda c: c.admitted_serial)
    if progressed:
        assert victim.sequence_id in progressed
    else:
        assert victim.sequence_id != oldest.sequence_id


# --- a pool under pressure ----------------------------------------------------


@dataclass
class Job:
    """A sequence that grows by a token a step until it is done."""

    identity: int
    tokens: int
    end_tokens: int
    priority: int
    preemptions: int = 0
    produced_since_admission: int = 0

    @property
    def blocks(self) -> int:
        return -(-self.tokens // BLOCK_TOKENS)

    def candidate(self, serial: int) -> VictimCandidate:
        return VictimCandidate(
            sequence_id=self.identity,
            priority=self.priority,
            admitted_serial=serial,
            progressed=not self.preemptions or self.produced_since_admission > 0,
            blocks=self.blocks,
            exclusive_blocks=self.blocks,
            computed_tokens=self.tokens - 1,
            reusable=True,
        )


@st.composite
def job_lists(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for identity in range(draw(st.integers(2, 6))):
        tokens = draw(st.integers(1, 20))
        end = tokens + draw(st.integers(1, 40 - tokens))
        jobs.append(Job(identity, tokens, end, priority=draw(st.integers(0, 1))))
    return jobs


@settings(max_examples=200, deadline=None)
@given(job_lists(), st.integers(10, 14), RATES)
def test_growth_in_a_pool_too_small_for_all_comes_to_its_end(
    jobs: list[Job], pool_blocks: int, rates: PreemptionRates
) -> None:
    waiting = sorted(jobs, key=lambda job: (-job.priority, job.identity))
    running: list[Job] = []
    work_tokens = sum(job.end_tokens - job.tokens for job in jobs)

    def free_blocks() -> int:
        return pool_blocks - sum(job.blocks for job in running)

    preemptions = 0
    for _ in range(2 * work_tokens + len(jobs)):
        while waiting and waiting[0].blocks <= free_blocks():
            job = waiting.pop(0)
            job.produced_since_admission = 0
            running.append(job)
        for job in tuple(running):
            if job not in running:
                continue  # a victim of an earlier one
            job.tokens += 1
            while job in running and free_blocks() < 0:
                candidates = [other.candidate(n) for n, other in enumerate(running)]
                plan = plan_preemption(candidates, 1, rates, needy_id=job.identity)
                assert plan is not None, "no job is larger than the pool"
                (victim_id,) = (victim.sequence_id for victim in plan.victims)
                victim = jobs[victim_id]
                running.remove(victim)
                victim.preemptions += 1
                preemptions += 1
                waiting.append(victim)
                waiting.sort(key=lambda job: (-job.priority, not job.preemptions, job.identity))
            if job in running:
                job.produced_since_admission += 1
                if job.tokens == job.end_tokens:
                    running.remove(job)
            else:
                job.tokens -= 1
        if not (running or waiting):
            event("preempted" if preemptions else "not preempted")
            return
    raise AssertionError(f"still at work: running {running}, waiting {waiting}")
