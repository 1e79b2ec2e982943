"""Requests that kill engines: they are found and fail, and nobody else does."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
import structlog
from engine_deaths import decoded, kill_engine, steps_of, until_running_again
from front_fakes import (
    Brake,
    Result,
    call,
    collect,
    count_prompt,
    counted_text,
    eventually,
    running_front,
    say,
)
from scripted_engine import CRASH, DIE, HOLD, SLEEP, SPIN

from service.front.events import EngineCrashedByRequest, EngineLost
from service.front.state import FrontState

TOKENS = 400


@pytest.mark.parametrize(
    ("prompt", "deaths"), [([CRASH, 0], 2), ([DIE], 4)], ids=["abort", "SIGKILL"]
)
async def test_a_poisonous_request_fails_and_the_front_does_not(
    tmp_path: Path, prompt: list[int], deaths: int
) -> None:
    async with running_front(tmp_path, restart_limit=1) as (front, record):
        with structlog.testing.capture_logs() as records:
            killing = await front.generate(call(prompt, "bad"))
            with pytest.raises(EngineCrashedByRequest) as caught:
                await collect(killing)
        assert (caught.value.engine_deaths, caught.value.tokens_sent) == (deaths, 0)
        assert (await collect(await front.generate(call(say("x"), "x")))).text == "x"
        assert len(record.lines("Start")) == 1 + deaths
        assert len(record.submitted()) == deaths + 1
        stats = front.stats()
        assert (stats.failed_requests, stats.completed_requests) == (1, 1)
        examined = [r for r in records if r["event"] == "engine death examined"]
        assert [(r["log_level"], r["in_flight"]) for r in examined] == [("warning", 1)] * deaths
        assert [r["suspects"] for r in examined] == [0, *[1] * (deaths - 2), 0]
        convicted = [r for r in records if r["event"] == "request kills engines"]
        assert [(r["log_level"], r["request_id"]) for r in convicted] == [("error", "bad")]


async def test_neighbours_of_killers_lose_no_token(tmp_path: Path) -> None:
    """Two that crash at once, one that does after 40 tokens, among 13 that are well."""
    crash_at = {3: 40, 7: 0, 12: 0}
    async with running_front(tmp_path, restart_limit=2) as (front, record):
        handles = [
            await front.generate(
                call(
                    [CRASH, crash_at[number]] if number in crash_at else count_prompt(),
                    f"r{number}",
                    seed=number,
                    max_tokens=TOKENS,
                )
            )
            for number in range(16)
        ]
        results = await asyncio.gather(*map(collect, handles), return_exceptions=True)
        for number, result in enumerate(results):
            if number in crash_at:
                assert isinstance(result, EngineCrashedByRequest)
                assert result.tokens_sent == crash_at[number]
            else:
                assert isinstance(result, Result)
                assert result.text == counted_text(number, TOKENS)
        assert front.state is FrontState.READY
        assert front.stats().engine_restarts == len(record.lines("Start")) - 1 <= 12


async def test_a_candidate_that_crashes_is_not_saved_by_the_others(tmp_path: Path) -> None:
    """Those that go on abort at the same token; one has ended before, by a stop string."""
    async with running_front(tmp_path, restart_limit=2) as (front, _):
        stop = counted_text(1, 9)[5:]
        good = asyncio.create_task(
            collect(await front.generate(call(count_prompt(), "good", seed=9, max_tokens=TOKENS)))
        )
        bad = call([CRASH, 30], "bad", seed=1, candidate_count=3, max_tokens=TOKENS, stop=(stop,))
        with pytest.raises(EngineCrashedByRequest):
            await collect(await front.generate(bad))
        assert (await good).text == counted_text(9, TOKENS)


async def test_an_engine_that_dies_of_everything_ends_in_failed(tmp_path: Path) -> None:
    async with running_front(tmp_path, restart_limit=2) as (front, record):
        handles = [await front.generate(call([CRASH, 0], f"r{i}")) for i in range(6)]
        errors = await asyncio.gather(*map(collect, handles), return_exceptions=True)
        kinds = [type(error) for error in errors]
        assert kinds == [EngineCrashedByRequest] * 3 + [EngineLost] * 3
        assert front.state is FrontState.FAILED
        assert len(record.lines("Start")) == 8  # of these, two deaths of all together


async def test_requests_wait_for_the_end_of_a_search(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        held = await front.generate(call([HOLD], "held"))
        for kills in (1, 2):
            await eventually(lambda n=kills: len(record.submitted()) == n)  # type: ignore[misc]
            await until_running_again(front, kill_engine(front))
        late = await front.generate(call(say("late"), "late"))
        await eventually(lambda: len(record.submitted()) == 3)
        await front.lookup([1])
        assert [s["id"] for s in record.submitted()] == [1, 1, 1]
        held.close()
        assert (await collect(late)).text == "late"


async def test_the_proven_go_on_while_suspects_are_tried(tmp_path: Path) -> None:
    brake = Brake(tmp_path, 500)
    async with running_front(tmp_path, *brake.options, restart_delay_seconds=0.1) as (
        front,
        record,
    ):
        kill_engine(front)
        await eventually(lambda: front.state is FrontState.RESTARTING)
        # All of them are sent to each engine together, the killer first.
        killing = await front.generate(call([CRASH, 0], "killing"))
        long = asyncio.create_task(
            collect(await front.generate(call(count_prompt(), "long", seed=1, max_tokens=1000)))
        )
        short = await front.generate(call(say("short"), "short"))
        with pytest.raises(EngineCrashedByRequest):
            await collect(killing)
        assert (await collect(short)).text == "short"
        assert not long.done()
        brake.let_go()
        assert (await long).text == counted_text(1, 1000)
        assert front.stats().engine_restarts == 5
        assert [s["id"] for s in record.submitted()][-2:] == [2, 3]


async def test_one_that_comes_further_than_before_is_not_convicted(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call([HOLD]))
        total = 0
        for steps in (1, 3, 3):  # the first one of the submission, the others of the calls
            await eventually(lambda n=total + 1: steps_of(front) == n)  # type: ignore[misc]
            for _ in range(steps - 1):
                await front.lookup([1])
            total += steps
            await eventually(lambda n=total: steps_of(front) == n)  # type: ignore[misc]
            pid = front.engine_process_id
            assert pid is not None
            os.kill(pid, signal.SIGUSR1)  # ends it as a crash does, but leaves no core
            await until_running_again(front, pid)
        with pytest.raises(EngineCrashedByRequest) as caught:
            await collect(handle)
        assert caught.value.engine_deaths == 3


async def test_one_that_freezes_engines_is_convicted_too(tmp_path: Path) -> None:
    async with running_front(tmp_path, engine_silence_seconds=0.5) as (front, _):
        handle = await front.generate(call([HOLD]))
        for kills in (1, 2):
            # Both at the same step: the report of it has arrived.
            await eventually(lambda n=kills: steps_of(front) == n)  # type: ignore[misc]
            pid = front.engine_process_id
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await until_running_again(front, pid)
        with pytest.raises(EngineCrashedByRequest) as caught:
            await collect(handle)
        assert caught.value.engine_deaths == 2


@pytest.mark.parametrize("hang", [SLEEP, SPIN])
async def test_one_that_hangs_engines_is_convicted_and_another_goes_on(
    tmp_path: Path, hang: int
) -> None:
    async with running_front(tmp_path, engine_silence_seconds=0.5) as (front, _):
        other = await front.generate(call(count_prompt(), "other", seed=3, max_tokens=100))
        other_result = asyncio.create_task(collect(other))
        with pytest.raises(EngineCrashedByRequest) as caught:
            await collect(await front.generate(call([hang], "hang")))
        assert caught.value.engine_deaths >= 2
        assert (await other_result).text == counted_text(3, 100)


@pytest.mark.slow
async def test_fifty_random_kills_convict_nobody(tmp_path: Path) -> None:
    """Far more than the limit of a crash loop, half of them while requests enter."""
    moments = random.Random(4)
    tokens, share = 600, 10
    brake = Brake(tmp_path, 0)
    async with running_front(tmp_path, *brake.options, restart_limit=5) as (front, _):
        results = [
            asyncio.create_task(
                collect(
                    await front.generate(call(count_prompt(), f"r{i}", seed=i, max_tokens=tokens))
                )
            )
            for i in range(16)
        ]
        for number in range(1, 51):
            before = decoded(front)
            brake.move(share * number)  # so that none can be over before the last kill
            if number % 2:  # engines in a row that yield nothing would be a crash loop
                await eventually(lambda n=before: decoded(front) > n)  # type: ignore[misc]
            await asyncio.sleep(moments.uniform(0.0, 0.03))
            await until_running_again(front, kill_engine(front))
        brake.let_go()
        for seed, result in enumerate(await asyncio.gather(*results)):
            assert result.text == counted_text(seed, tokens)
        assert front.stats().engine_restarts == 50
