"""The engine dies: streams continue, no token is lost or repeated; or the front gives up."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
import structlog
from front_fakes import (
    Result,
    call,
    collect,
    count_prompt,
    counted_text,
    eventually,
    running_front,
    say,
)
from scripted_engine import CRASH, DIE, HOLD, WAIT, logprob_of

from service.engine.messages import FinishReason, Loading
from service.front.call import candidate_seed
from service.front.events import EngineCrashedByRequest, EngineLost, NotReady
from service.front.front import Front
from service.front.handle import RequestHandle
from service.front.state import EngineFailed, FrontState

TOKENS = 400


def kill_engine(front: Front) -> int:
    pid = front.engine_process_id
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def until_running_again(front: Front, old_pid: int) -> None:
    await eventually(
        lambda: front.state is FrontState.READY and front.engine_process_id not in (None, old_pid)
    )


async def collect_rest(handle: RequestHandle) -> None:
    async for _ in handle:
        pass


def steps_of(front: Front) -> int:
    engine = front.stats().engine
    return 0 if engine is None else engine.steps


def decoded(front: Front) -> int:
    engine = front.stats().engine
    return 0 if engine is None else engine.decode_tokens


@pytest.mark.parametrize("kills", [1, 3])
async def test_sixteen_streams_survive_sigkill(tmp_path: Path, kills: int) -> None:
    async with running_front(tmp_path) as (front, record):
        handles = [
            await front.generate(
                call(count_prompt(5), f"r{seed}", seed=seed, max_tokens=TOKENS, logprobs=0)
            )
            for seed in range(16)
        ]
        results = [asyncio.create_task(collect(handle)) for handle in handles]
        for number in range(1, kills + 1):
            share = 16 * TOKENS * number // (kills + 2)
            await eventually(lambda share=share: decoded(front) > share)  # type: ignore[misc]
            await until_running_again(front, kill_engine(front))
        for seed, result in enumerate(await asyncio.gather(*results)):
            text = counted_text(seed, TOKENS)
            assert result.text == text
            assert result.logprobs[0] == [logprob_of(i, 0) for i in text.encode()]
            assert result.ended is not None
            usage = result.ended.usage
            assert usage.completion_tokens == TOKENS
            assert usage.cached_prompt_tokens == 1  # of the first admission
            # Each restart computes prompt and received tokens again, less the 2 cached ones;
            # 1 comes from the last engine's own figures.
            resumes = [s for s in record.submitted() if s["seed"] == seed and s["resumed"]]
            assert len(resumes) == kills
            assert usage.recomputed_tokens == 1 + sum(5 + len(s["outputs"]) - 2 for s in resumes)
            assert result.ended.timings.decode_seconds > 0
        assert front.stats().engine_restarts == kills
        assert front.stats().live_requests == 0
        assert len(record.lines("Start")) == kills + 1
        # Counters go on over engines: nothing that was received is forgotten.
        assert decoded(front) >= 16 * TOKENS


async def test_ended_candidates_and_settled_stops_are_not_computed_again(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        texts = [counted_text(candidate_seed(1, i), TOKENS) for i in range(3)]
        stop = texts[1][5:8]
        handle = await front.generate(
            call(count_prompt(), seed=1, candidate_count=3, max_tokens=TOKENS, stop=(stop,))
        )
        result = asyncio.create_task(collect(handle))
        await eventually(lambda: bool(record.aborted_ids()))
        await until_running_again(front, kill_engine(front))
        outcome = await result
        assert outcome.texts == {0: texts[0], 1: texts[1][: texts[1].index(stop)], 2: texts[2]}
        resumed = [s["seed"] for s in record.submitted() if s["resumed"]]
        assert resumed == [candidate_seed(1, 0), candidate_seed(1, 2)]


async def test_a_death_before_the_figures_of_an_ended_candidate_ends_the_request(
    tmp_path: Path,
) -> None:
    async with running_front(tmp_path, "--ignore-aborts") as (front, record):
        stop = counted_text(1, 9)[5:]
        handle = await front.generate(call(count_prompt(), seed=1, stop=(stop,)))
        result = asyncio.create_task(collect(handle))
        await eventually(lambda: bool(record.aborted_ids()))
        assert not result.done(), "the engine has still to tell its figures"
        kill_engine(front)
        assert (await result).reasons == {0: FinishReason.STOP}
        assert len(record.submitted()) == 1


async def test_sequences_that_never_ran_are_submitted_as_new(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        await front.generate(call([WAIT], "w"))
        handle = await front.generate(call([HOLD], "h"))
        await handle.next()
        await until_running_again(front, kill_engine(front))
        await eventually(lambda: len(record.submitted()) == 4)
        again = record.submitted()[2:]
        assert [(s["id"], s["resumed"]) for s in again] == [(1, False), (2, True)]
        assert front.stats().waiting_requests == 1


async def test_requests_that_come_during_a_restart_wait(tmp_path: Path) -> None:
    async with running_front(tmp_path, restart_delay_seconds=0.2) as (front, record):
        kill_engine(front)
        await eventually(lambda: front.state is FrontState.RESTARTING)
        handle = await front.generate(call(say("late")))
        assert front.stats().waiting_requests == 1
        with pytest.raises(NotReady):
            await front.lookup([1])
        assert (await collect(handle)).text == "late"
        assert len(record.submitted()) == 1


async def test_what_is_cancelled_during_a_restart_never_reaches_an_engine(tmp_path: Path) -> None:
    async with running_front(tmp_path, restart_delay_seconds=0.2) as (front, record):
        running = await front.generate(call([HOLD], "running"))
        await running.next()
        kill_engine(front)
        await eventually(lambda: front.state is FrontState.RESTARTING)
        late = await front.generate(call(say("late"), "late"))
        timed = await front.generate(call(say("timed"), "timed", time_limit_seconds=0.01))
        late.close()
        running.close()
        result = await collect(timed)
        assert result.reasons == {0: FinishReason.TIME_LIMIT}
        assert result.text == ""
        assert front.state is FrontState.RESTARTING
        await eventually(lambda: front.state is FrontState.READY)
        assert (await collect(await front.generate(call(say("x"), "x")))).text == "x"
        assert len(record.submitted()) == 2  # the running one and the last


async def test_calls_to_a_dying_engine_fail(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        asking = asyncio.create_task(front.lookup([HOLD]))
        await asyncio.sleep(0)
        kill_engine(front)
        with pytest.raises(NotReady):
            await asking


async def test_a_crash_loop_ends_in_failed(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--crash-after-ready", restart_limit=2) as (front, record):
        await eventually(lambda: front.state is FrontState.FAILED)
        assert "exit status 4" in (front.failure or "")
        assert len(record.lines("Start")) == 3
        with pytest.raises(NotReady):
            await front.generate(call(say("x")))


async def test_requests_of_a_lost_engine_are_told_how_far_they_came(tmp_path: Path) -> None:
    async with running_front(tmp_path, restart_limit=0) as (front, _):
        handle = await front.generate(call(count_prompt(), "a"))
        waiting = await front.generate(call([WAIT], "b"))
        await handle.next()
        await handle.next()
        kill_engine(front)
        with pytest.raises(EngineLost) as caught:
            await collect_rest(handle)
        assert caught.value.tokens_sent > 0
        with pytest.raises(EngineLost) as caught:
            await waiting.next()
        assert caught.value.tokens_sent == 0
        assert front.state is FrontState.FAILED
        assert front.stats().failed_requests == 2


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
    async with running_front(tmp_path, restart_delay_seconds=0.1) as (front, record):
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
    async with running_front(tmp_path, engine_silence_seconds=0.5) as (front, record):
        handle = await front.generate(call([HOLD]))
        for kills in (1, 2):
            await eventually(lambda n=kills: len(record.submitted()) == n)  # type: ignore[misc]
            pid = front.engine_process_id
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await until_running_again(front, pid)
        with pytest.raises(EngineCrashedByRequest) as caught:
            await collect(handle)
        assert caught.value.engine_deaths == 2


@pytest.mark.slow
async def test_fifty_random_kills_convict_nobody(tmp_path: Path) -> None:
    """Far more than the limit of a crash loop, some of them while requests enter."""
    moments = random.Random(4)
    tokens = 2000
    async with running_front(tmp_path, restart_limit=5) as (front, _):
        results = [
            asyncio.create_task(
                collect(
                    await front.generate(call(count_prompt(), f"r{i}", seed=i, max_tokens=tokens))
                )
            )
            for i in range(16)
        ]
        for _ in range(50):
            await asyncio.sleep(moments.uniform(0.0, 0.03))
            await until_running_again(front, kill_engine(front))
        for seed, result in enumerate(await asyncio.gather(*results)):
            assert result.text == counted_text(seed, tokens)
        assert front.stats().engine_restarts == 50


async def test_an_engine_that_refuses_its_settings_is_not_started_again(tmp_path: Path) -> None:
    loading: list[Loading] = []
    async with running_front(
        tmp_path, "--start-failed", "no such model", ready=False, on_loading=loading.append
    ) as (front, record):
        with pytest.raises(EngineFailed, match="no such model"):
            await front.wait_ready()
        assert front.state is FrontState.FAILED
        assert len(record.lines("Start")) == 1
        assert loading == [Loading("weights", 1, 2, "tensors")]


async def test_an_engine_that_never_starts_ends_in_failed(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--crash-at-start", ready=False, restart_limit=1) as (
        front,
        record,
    ):
        assert front.state is FrontState.STARTING
        with pytest.raises(NotReady):
            await front.generate(call(say("x")))
        with pytest.raises(EngineFailed, match="exit status 3"):
            await front.wait_ready()
        assert len(record.lines("Start")) == 2


async def test_a_program_that_does_not_exist_ends_in_failed(tmp_path: Path) -> None:
    async with running_front(
        tmp_path, ready=False, restart_limit=0, command=["/no/such/program"]
    ) as (front, _):
        with pytest.raises(EngineFailed, match="cannot be started"):
            await front.wait_ready()


async def test_a_silent_start_is_killed(tmp_path: Path) -> None:
    async with running_front(
        tmp_path,
        "--hang-at-start",
        ready=False,
        restart_limit=0,
        engine_start_timeout_seconds=2.0,
    ) as (front, _):
        with pytest.raises(EngineFailed, match="engine_start_timeout_seconds = 2 while starting"):
            await front.wait_ready()


async def test_a_frozen_engine_is_replaced_and_streams_go_on(tmp_path: Path) -> None:
    async with running_front(tmp_path, engine_silence_seconds=1.0) as (front, record):
        results = [
            asyncio.create_task(
                collect(await front.generate(call(count_prompt(), f"r{i}", seed=i, max_tokens=300)))
            )
            for i in range(4)
        ]
        await eventually(lambda: decoded(front) > 50)
        frozen = front.engine_process_id
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        texts = [(await result).text for result in results]
        assert texts == [counted_text(i, 300) for i in range(4)]
        assert {s["id"] for s in record.submitted() if s["resumed"]} == {1, 2, 3, 4}
        with pytest.raises(ProcessLookupError):
            os.kill(frozen, 0)


async def test_an_engine_that_talks_garbage_is_replaced(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--garbage", restart_limit=1) as (front, record):
        await eventually(lambda: front.state is FrontState.FAILED)
        assert "no message" in (front.failure or "")
        assert len(record.lines("Start")) == 2


async def test_words_of_two_models_are_not_joined(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--version-of-pid") as (front, _):
        handle = await front.generate(call([HOLD]))
        await handle.next()
        await until_running_again(front, kill_engine(front))
        with pytest.raises(EngineLost):
            await handle.next()


@pytest.mark.slow
async def test_an_engine_that_does_not_read_gets_bounded_memory(tmp_path: Path) -> None:
    """Submissions wait in the front, where they can be cancelled, not in the socket."""
    async with running_front(tmp_path, "--deaf", max_waiting_requests=400) as (front, record):
        handles = [
            await front.generate(call(count_prompt(4000), f"r{i}")) for i in range(400)
        ]  # 400 x 12 kB; socket and link take about 1.2 MB
        dispatcher = front._dispatcher
        assert 0 < dispatcher._quarantine.waiting < 400
        for handle in handles[1:]:
            handle.close()
        assert front.stats().live_requests == 1
        await until_running_again(front, kill_engine(front))
        assert len(dispatcher._in_engine) == 1
        assert record.submitted() == []
