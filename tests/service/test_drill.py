"""The drill against a server that follows faults by the clock: it sees what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from drill_server import CEILING_BLOCKS, DrillServer, Manners, start_drill_server, wrong

from service.api.faults import faults_request
from service.client import NO_RETRY, PlimsollClient, PlimsollError
from service.drill.conductor import NoLedgerError, Order, run_drill
from service.drill.course import Course
from service.drill.findings import Findings, find
from service.drill.phase import Pace, Stage
from service.drill.verdict import Criterion, judge
from service.faults.plan import Balloon, ExitEngine, FaultPlan, HangEngine

PACE = Pace(
    baseline_seconds=0.3,
    rise_seconds=1.2,
    failures_seconds=1.0,
    fall_seconds=0.2,
    calm_seconds=0.1,
    regrow_limit_seconds=30.0,
    recovery_limit_seconds=30.0,
)
ORDER = Order(PACE, streams=3, prompts=5, max_tokens=60, pool_share=0.5)


@contextlib.asynccontextmanager
async def drilled(manners: Manners) -> AsyncIterator[tuple[DrillServer, Any]]:
    """A server, and a function that drills it."""
    fake, server, address = await start_drill_server(manners)
    async with (
        PlimsollClient(address, retry=NO_RETRY, resume=None) as client,
        PlimsollClient(address, admin_target=address, retry=NO_RETRY) as admin,
    ):

        async def inject(plan: FaultPlan) -> None:
            await admin.inject_faults(faults_request(plan))

        async def drill(order: Order = ORDER) -> Course:
            return await run_drill(client, admin, inject, order, lambda _: None)

        try:
            yield fake, drill
        finally:
            await server.stop(None)


async def judged(manners: Manners) -> tuple[Course, Findings, list[Criterion]]:
    """The course, the findings, and what the server failed."""
    pace = PACE if manners.regrows else dataclasses.replace(PACE, regrow_limit_seconds=1.0)
    async with drilled(manners) as (_, drill):
        course = await drill(dataclasses.replace(ORDER, pace=pace))
    findings = find(course)
    verdict = judge(course, findings)
    return course, findings, [c for c in verdict.criteria if not c.passed]


async def test_a_good_server_passes_and_everything_was_tried() -> None:
    async with drilled(Manners()) as (fake, drill):
        course = await drill()
    findings = find(course)
    verdict = judge(course, findings)
    assert verdict.passed, verdict
    assert [mark.stage for mark in course.phases] == list(Stage)
    ordered = [type(fault) for plan in fake.plans for fault in plan]
    assert {Balloon, ExitEngine, HangEngine} <= set(ordered)
    assert fake.plans[-1] == []
    assert findings.rungs == (3, 2, 1, 0)
    assert findings.pool.before == findings.pool.after == CEILING_BLOCKS
    # All that was free, and half of the pool.
    assert findings.balloon_bytes == pytest.approx(400_000_000, rel=0.02)
    assert findings.streams.live_at_once == 3
    assert findings.streams.requests > 10
    assert [loss.replaced for loss in findings.losses] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("manners", "failed"),
    [
        (wrong(drops=True), "0 streams dropped"),
        (wrong(loses=7), "0 tokens lost"),
        (wrong(repeats=3), "0 tokens repeated"),
        (wrong(differs=True), "0 tokens differing"),
        (wrong(warns=False), "the level rose before memory ran out"),
        (wrong(regrows=False), "the KV pool grew back"),
    ],
    ids=lambda value: "" if isinstance(value, Manners) else value,
)
async def test_a_bad_server_fails_in_what_it_does_badly(manners: Manners, failed: str) -> None:
    _, findings, failures = await judged(manners)
    assert failed in [criterion.wanted for criterion in failures]
    damage = findings.streams.damage
    assert (damage.lost, damage.repeated) == (manners.loses, manners.repeats)
    assert (damage.differing > 0) == manners.differs
    assert findings.streams.dropped == int(manners.drops)


@pytest.mark.slow
async def test_memory_that_never_runs_out_proves_nothing() -> None:
    _, findings, failures = await judged(wrong(runs_out=False))
    assert findings.precursor.lead_seconds is None
    wanted = [criterion.wanted for criterion in failures]
    assert "memory ran out in a step" in wanted
    assert "the level rose before memory ran out" in wanted


@pytest.mark.slow
async def test_an_engine_that_does_not_come_back_ends_the_drill() -> None:
    pace = dataclasses.replace(PACE, recovery_limit_seconds=1.0)
    async with drilled(wrong(restarts=False)) as (_, drill):
        course = await drill(dataclasses.replace(ORDER, pace=pace))
    assert course.phases[-1].stage is Stage.EXIT
    assert not course.phases[-1].is_complete
    assert find(course).streams.endless == ORDER.streams
    verdict = judge(course, find(course))
    assert not verdict.passed
    assert "not begun" in verdict.criteria[0].found


@pytest.mark.slow
async def test_a_server_that_dies_is_a_verdict_not_an_error() -> None:
    async with drilled(wrong(dies_at=HangEngine)) as (_, drill):
        course = await drill()
    assert "gone" in course.cut_short
    findings = find(course)
    assert findings.streams.dropped > 0
    assert not judge(course, findings).passed


async def test_refused_requests_are_asked_again_and_not_taken_for_dropped() -> None:
    async with drilled(Manners()) as (fake, drill):
        task = asyncio.create_task(drill())
        await fake.until_ordered(Balloon)
        fake.refusals = 2
        course = await task
    findings = find(course)
    assert findings.streams.refused == 2
    assert findings.streams.dropped == 0
    assert findings.streams.reasons == {"refused: DRAINING": 2}


async def test_a_server_that_takes_no_faults_is_left_alone() -> None:
    async with drilled(wrong(allows_faults=False)) as (fake, drill):
        with pytest.raises(PlimsollError) as caught:
            await drill()
    assert caught.value.reason == "FAULTS_DISABLED"
    assert fake.plans == []


async def test_a_server_without_ledger_is_told_so_and_left_without_faults() -> None:
    async with drilled(wrong(tells_memory=False)) as (fake, drill):
        with pytest.raises(NoLedgerError):
            await drill()
    assert all(plan == [] for plan in fake.plans)


async def test_no_fault_is_left_when_the_drill_is_interrupted() -> None:
    async with drilled(Manners()) as (fake, drill):
        task = asyncio.create_task(drill())
        await fake.until_ordered(Balloon)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert fake.faults == []
        assert len(fake.plans) > 2
