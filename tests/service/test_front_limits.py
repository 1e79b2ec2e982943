"""Ends before the end: clients that leave, limits of time, slow readers, aborts, idleness."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from engine_deaths import decoded
from front_fakes import (
    Brake,
    call,
    collect,
    count_prompt,
    counted_text,
    eventually,
    let_time_pass,
    running_front,
    say,
)
from scripted_engine import COUNT, HOLD, WAIT

from service.engine.messages import FinishReason
from service.front.events import AbortedByAdmin, DeadlinePassed, SlowReader, Started
from service.front.front import Front


def held_blocks(front: Front) -> int:
    engine = front.stats().engine
    assert engine is not None
    return engine.blocks_held


@pytest.mark.parametrize("mode", [WAIT, HOLD, COUNT])
async def test_close_ends_the_work_in_every_phase(tmp_path: Path, mode: int) -> None:
    async with running_front(tmp_path) as (front, record):
        handle = await front.generate(call([mode], candidate_count=2))
        neighbour = await front.generate(call([HOLD], "neighbour"))
        await neighbour.next()
        if mode != WAIT:
            await handle.next()
        handle.close()
        handle.close()
        await eventually(lambda: bool(record.aborted_ids()))
        assert record.aborted_ids() == [1, 2]
        await eventually(lambda: held_blocks(front) == 1)
        assert front.stats().live_requests == 1
        assert front.stats().cancelled_requests == 1
        with pytest.raises(StopAsyncIteration):
            await handle.next()


async def test_close_before_the_engine_heard_of_it(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        handle = await front.generate(call(count_prompt()))
        handle.close()
        result = await collect(await front.generate(call(say("x"), "x")))
        assert result.text == "x"
        assert held_blocks(front) == 0
        assert record.aborted_ids() == [1]


async def test_close_wakes_a_reader(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call([WAIT]))
        reading = asyncio.create_task(handle.next())
        await asyncio.sleep(0)
        handle.close()
        with pytest.raises(StopAsyncIteration):
            # A task turns the exception into its result; awaiting it raises.
            await reading


async def test_a_cancelled_wait_loses_nothing(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call(count_prompt(), seed=2, max_tokens=200))
        assert isinstance(await handle.next(), Started)
        text = ""
        reason = None
        while reason is None:
            reading = asyncio.create_task(handle.next())
            await asyncio.sleep(0)
            reading.cancel()
            try:
                event: Any = await reading
            except asyncio.CancelledError:
                event = await handle.next()
            text += event.deltas[0].text
            reason = event.deltas[0].finish_reason
        assert text == counted_text(2, 200)


@pytest.mark.parametrize("mode", [WAIT, HOLD, COUNT])
async def test_time_limit_gives_the_text_so_far(tmp_path: Path, mode: int) -> None:
    brake = Brake(tmp_path, 100)
    async with running_front(tmp_path, *brake.options) as (front, record):
        handle = await front.generate(
            call([mode], seed=4, candidate_count=2, time_limit_seconds=3600.0)
        )
        reading = asyncio.create_task(collect(handle))
        await eventually(lambda: len(record.submitted()) == 2)
        if mode == COUNT:
            await eventually(lambda: decoded(front) > 0)
        let_time_pass(3600.0)
        result = await reading
        assert result.reasons == {0: FinishReason.TIME_LIMIT, 1: FinishReason.TIME_LIMIT}
        assert counted_text(4, 4096).startswith(result.texts[0])
        assert bool(result.texts[0]) == (mode == COUNT)
        assert record.aborted_ids() == [1, 2]
        assert held_blocks(front) == 0
        assert front.stats().completed_requests == 1


async def test_the_deadline_stops_the_work(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        handle = await front.generate(
            call([HOLD], deadline_seconds=time.monotonic() + 3000, time_limit_seconds=3600.0)
        )
        await eventually(lambda: len(record.submitted()) == 1)
        let_time_pass(3000)
        await eventually(lambda: record.aborted_ids() == [1])
        with pytest.raises(DeadlinePassed):
            await collect(handle)
        await eventually(lambda: held_blocks(front) == 0)


async def test_of_deadline_and_time_limit_the_first_one_counts(tmp_path: Path) -> None:
    """A client that gets text for its time must not lose it to a deadline of the same call."""
    async with running_front(tmp_path) as (front, _):
        deadline_seconds = time.monotonic() + 3600
        result = await collect(
            await front.generate(
                call([HOLD], deadline_seconds=deadline_seconds, time_limit_seconds=0.05)
            )
        )
        assert result.reasons == {0: FinishReason.TIME_LIMIT}


async def test_a_request_past_its_deadline_never_reaches_the_engine(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        handle = await front.generate(call(say("x"), deadline_seconds=time.monotonic() - 1))
        with pytest.raises(DeadlinePassed):
            await collect(handle)
        assert record.submitted() == []
        assert front.stats().live_requests == 0


async def test_time_limit_counts_from_the_arrival(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        arrival = time.monotonic() - 10
        result = await collect(
            await front.generate(call([HOLD], arrival_seconds=arrival, time_limit_seconds=9.0))
        )
        assert result.reasons == {0: FinishReason.TIME_LIMIT}
        assert record.submitted() == []


async def test_abort_finds_only_the_tenant_s_own(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        mine = await front.generate(call([HOLD], "one", tenant="a"))
        other = await front.generate(call([HOLD], "one", tenant="b"))
        assert isinstance(await other.next(), Started)
        answer = front.abort(["one", "two", "one"], tenant="a", reason="because")
        assert answer == (["one"], ["two", "one"])
        with pytest.raises(AbortedByAdmin) as caught:
            await mine.next()
        assert caught.value.reason == "because"
        await eventually(lambda: held_blocks(front) == 1)
        assert front.stats().live_requests == 1


async def test_a_reader_that_stalls_is_cut_and_others_are_not(tmp_path: Path) -> None:
    async with running_front(tmp_path, slow_reader_seconds=0.3) as (front, record):
        slow = await front.generate(call(count_prompt(), "slow", max_tokens=4000))
        idle = await front.generate(call([HOLD], "idle"))
        assert isinstance(await slow.next(), Started)
        assert isinstance(await idle.next(), Started)
        reading = asyncio.create_task(idle.next())
        await eventually(lambda: front.stats().failed_requests == 1)
        assert record.aborted_ids() in ([1], [])  # [] when all 4000 tokens were done
        with pytest.raises(SlowReader) as caught:
            await slow.next()
        assert caught.value.limit_seconds == 0.3
        assert caught.value.unsent_tokens > 0
        assert not reading.done()
        assert front.stats().live_requests == 1
        idle.close()
        with pytest.raises(StopAsyncIteration):
            await reading


async def test_a_reader_that_does_not_take_the_end_is_cut_too(tmp_path: Path) -> None:
    async with running_front(tmp_path, slow_reader_seconds=0.2) as (front, _):
        handle = await front.generate(call(say("x")))
        reading = asyncio.create_task(handle.next())
        for number in range(1, 4):  # the scripted engine steps after each message; then it is idle
            await front.lookup([number])
        assert isinstance(await reading, Started)
        await eventually(lambda: front.stats().live_requests == 0)
        with pytest.raises(SlowReader):
            await handle.next()


async def test_unread_output_is_bounded_in_bytes(tmp_path: Path) -> None:
    async with running_front(tmp_path, slow_reader_buffer_bytes=1024) as (front, record):
        handle = await front.generate(call(count_prompt(), max_tokens=4000))
        await handle.next()
        unsent_tokens = handle.unsent_tokens  # which came at once, before anybody could read
        await eventually(lambda: bool(record.aborted_ids()))
        with pytest.raises(SlowReader) as caught:
            await handle.next()
        assert caught.value.unsent_tokens == max(1024, unsent_tokens) + 1


async def test_a_slow_reader_within_the_limits_gets_everything(tmp_path: Path) -> None:
    async with running_front(tmp_path, slow_reader_seconds=60.0) as (front, _):
        began_seconds = time.monotonic()
        handle = await front.generate(call(count_prompt(), seed=8, max_tokens=500))
        text = ""
        ended: Any = None
        async for event in handle:
            text += "".join(d.text for d in getattr(event, "deltas", []))
            ended = event
            await asyncio.sleep(0.03)
        assert text == counted_text(8, 500)
        elapsed_seconds = time.monotonic() - began_seconds
        assert 0.03 < ended.timings.blocked_on_client_seconds < elapsed_seconds


async def test_a_thousand_idle_streams_cost_nothing(tmp_path: Path) -> None:
    """Counted: the loop runs no callback at all while nothing happens."""
    async with running_front(tmp_path, max_waiting_requests=1000) as (front, _):
        handles = [
            await front.generate(call([HOLD], f"r{i}", time_limit_seconds=3600.0))
            for i in range(1000)
        ]
        for handle in handles:
            await handle.next()
        readers = [asyncio.create_task(handle.next()) for handle in handles]
        for _ in range(10):
            await asyncio.sleep(0)
        loop: Any = asyncio.get_running_loop()
        runs = 0
        run_once = loop._run_once

        def counting_run_once() -> None:
            nonlocal runs
            runs += 1
            run_once()

        loop._run_once = counting_run_once
        try:
            await asyncio.sleep(0.5)
        finally:
            del loop._run_once
        assert runs <= 4  # our own sleep
        assert not any(reader.done() for reader in readers)
        for handle in handles:
            handle.close()
        await asyncio.gather(*readers, return_exceptions=True)
