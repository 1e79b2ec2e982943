"""A front with more to do than it can: refusals at the door, while waiting, and by tenant."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from front_fakes import (
    call,
    collect,
    count_prompt,
    eventually,
    let_time_pass,
    running_front,
)
from scripted_engine import HOLD, WAIT

from service.engine.messages import FinishReason
from service.front.events import DeadlinePassed, DeadlineUnreachable, QueueFull
from service.front.front import Front

# What steps are said to take, so that an answer takes 100 seconds in all forecasts, and none here.
STEP = ("--said-step-seconds", "5")
ANSWER_TOKENS = 20


async def teach(front: Front) -> None:
    """Lets the front see what a step costs and how long answers are."""
    for number in range(2):
        await collect(
            await front.generate(
                call(count_prompt(), f"teach {number}", seed=number, max_tokens=ANSWER_TOKENS)
            )
        )


async def test_what_would_be_late_is_refused_at_once(tmp_path: Path) -> None:
    async with running_front(tmp_path, *STEP) as (front, record):
        await teach(front)
        neighbour = await front.generate(call([HOLD], "neighbour", max_tokens=2000))
        await neighbour.next()
        sent = len(record.submitted())
        with pytest.raises(DeadlineUnreachable) as caught:
            await front.generate(
                call(count_prompt(), max_tokens=2000, deadline_seconds=time.monotonic() + 40)
            )
        assert caught.value.forecast_seconds > 40 >= caught.value.remaining_seconds
        assert 0.1 <= caught.value.retry_after_seconds <= 30.0
        assert len(record.submitted()) == sent
        assert front.stats().rejected_requests == 1
        assert front.stats().live_requests == 1
        relaxed = call(count_prompt(), max_tokens=20, deadline_seconds=time.monotonic() + 600)
        assert (await collect(await front.generate(relaxed))).ended is not None
        neighbour.close()


async def test_short_answers_have_time_where_long_ones_have_not(tmp_path: Path) -> None:
    async with running_front(tmp_path, *STEP) as (front, _):
        await teach(front)
        await front.generate(call([HOLD], "neighbour"))
        deadline_seconds = time.monotonic() + 70
        result = await collect(
            await front.generate(
                call(count_prompt(), max_tokens=3, deadline_seconds=deadline_seconds)
            )
        )
        assert result.reasons == {0: FinishReason.MAX_TOKENS}


async def test_an_idle_engine_takes_everybody(tmp_path: Path) -> None:
    async with running_front(tmp_path, *STEP) as (front, _):
        await teach(front)
        handle = await front.generate(
            call([HOLD], max_tokens=2000, deadline_seconds=time.monotonic() + 30)
        )
        let_time_pass(30)
        with pytest.raises(DeadlinePassed):
            await collect(handle)
        assert front.stats().rejected_requests == 0


async def test_a_time_limit_is_no_deadline(tmp_path: Path) -> None:
    """The text so far is the answer."""
    async with running_front(tmp_path, *STEP) as (front, _):
        await teach(front)
        await front.generate(call([HOLD], "neighbour"))
        limited = call(
            [HOLD], max_tokens=2000, time_limit_seconds=30, deadline_seconds=time.monotonic() + 50
        )
        handle = await front.generate(limited)
        let_time_pass(30)
        result = await collect(handle)
        assert result.reasons == {0: FinishReason.TIME_LIMIT}


async def test_the_gate_can_be_opened(tmp_path: Path) -> None:
    async with running_front(tmp_path, *STEP, refuse_unreachable_deadlines=False) as (front, _):
        await teach(front)
        await front.generate(call([HOLD], "neighbour"))
        handle = await front.generate(
            call([HOLD], max_tokens=2000, deadline_seconds=time.monotonic() + 30)
        )
        let_time_pass(30)
        with pytest.raises(DeadlinePassed):
            await collect(handle)


async def test_one_that_waits_in_vain_is_told_before_its_deadline(tmp_path: Path) -> None:
    steps = ("--step-seconds", "0.02", "--said-step-seconds", "1")
    async with running_front(tmp_path, *steps) as (front, record):
        await teach(front)
        neighbour = await front.generate(call(count_prompt(), "neighbour", max_tokens=4000))
        await neighbour.next()
        with pytest.raises(DeadlineUnreachable) as refusal:
            await front.generate(
                call(count_prompt(), max_tokens=2000, deadline_seconds=time.monotonic() + 10)
            )
        # At the door, where there is a margin, this is enough, and soon it is not any more.
        enough_seconds = refusal.value.forecast_seconds * 1.06 + 2
        deadline_seconds = time.monotonic() + enough_seconds
        waiting = await front.generate(
            call([WAIT], "waits", max_tokens=2000, deadline_seconds=deadline_seconds)
        )
        with pytest.raises(DeadlineUnreachable) as caught:
            await waiting.next()
        assert time.monotonic() < deadline_seconds
        assert 0 < caught.value.remaining_seconds < caught.value.forecast_seconds
        await eventually(lambda: record.aborted_ids() == [4])
        stats = front.stats()
        assert (stats.rejected_requests, stats.failed_requests) == (2, 0)
        assert (stats.live_requests, stats.waiting_requests) == (1, 0)
        neighbour.close()


async def test_a_full_queue_takes_from_the_tenant_with_most_waiting(tmp_path: Path) -> None:
    async with running_front(tmp_path, max_waiting_requests=3) as (front, record):
        handles = [
            await front.generate(call([WAIT], f"flood {n}", tenant="flood")) for n in range(3)
        ]
        reading = [asyncio.create_task(handle.next()) for handle in handles]
        with pytest.raises(QueueFull):
            await front.generate(call([WAIT], "flood 3", tenant="flood"))
        await front.generate(call([WAIT], "first", tenant="other"))
        with pytest.raises(QueueFull) as caught:
            await reading[2]
        assert (caught.value.waiting, caught.value.limit) == (3, 3)
        assert caught.value.retry_after_seconds > 0
        with pytest.raises(QueueFull):
            await front.generate(call([WAIT], "second", tenant="other"))
        await eventually(lambda: record.aborted_ids() == [3])
        assert not reading[0].done()
        assert not reading[1].done()
        stats = front.stats()
        assert (stats.waiting_requests, stats.live_requests) == (3, 3)
        assert (stats.rejected_requests, stats.failed_requests) == (3, 0)
        for task in reading[:2]:
            task.cancel()


async def test_of_all_live_requests_only_waiting_ones_give_way(tmp_path: Path) -> None:
    async with running_front(tmp_path, max_live_requests=3) as (front, _):
        running = [await front.generate(call([HOLD], f"r{n}", tenant="flood")) for n in range(3)]
        for handle in running:
            await handle.next()
        with pytest.raises(QueueFull):
            await front.generate(call([WAIT], "other", tenant="other"))
        assert front.stats().live_requests == 3


async def test_expectations_go_to_the_engine(tmp_path: Path) -> None:
    async with running_front(tmp_path, *STEP) as (front, record):
        await teach(front)
        for number, max_tokens in enumerate((2000, 7)):
            handle = await front.generate(call([WAIT], f"x{number}", max_tokens=max_tokens))
            handle.close()
        await eventually(lambda: len(record.submitted()) == 4)
        assert [s["expected_tokens"] for s in record.submitted()] == [0, 20, 20, 7]


async def test_time_without_an_engine_is_no_cost_of_a_step(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--step-seconds", "0.01") as (front, _):
        await teach(front)
        neighbour = await front.generate(call(count_prompt(), "neighbour", max_tokens=4000))
        await neighbour.next()
        assert front.engine_process_id is not None
        old = front.engine_process_id
        os.kill(old, signal.SIGKILL)
        await eventually(lambda: front.engine_process_id not in (None, old))
        before = neighbour.unsent_tokens
        await eventually(lambda: neighbour.unsent_tokens > before + 3)
        handle = await front.generate(
            call(count_prompt(), max_tokens=20, deadline_seconds=time.monotonic() + 2.0)
        )
        handle.close()  # it was let in
        neighbour.close()
