"""The engine dies: streams continue, no token is lost or repeated; or the front gives up."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from pathlib import Path

import pytest
from engine_deaths import collect_rest, decoded, kill_engine, until_running_again
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
from scripted_engine import HOLD, WAIT, logprob_of

from service.engine.messages import FinishReason, Loading
from service.front.call import candidate_seed
from service.front.events import EngineLost, NotReady
from service.front.state import EngineFailed, FrontState

TOKENS = 400
PAUSE_SECONDS = 600.0  # before a restart: nothing else takes so long
LONG_PAUSE = {
    "restart_delay_seconds": PAUSE_SECONDS,
    "restart_delay_max_seconds": PAUSE_SECONDS,
}


@pytest.mark.parametrize("kills", [1, 3])
async def test_sixteen_streams_survive_sigkill(tmp_path: Path, kills: int) -> None:
    brake = Brake(tmp_path, 0)
    async with running_front(tmp_path, *brake.options) as (front, record):
        handles = [
            await front.generate(
                call(count_prompt(5), f"r{seed}", seed=seed, max_tokens=TOKENS, logprobs=0)
            )
            for seed in range(16)
        ]
        results = [asyncio.create_task(collect(handle)) for handle in handles]
        for number in range(1, kills + 1):
            share = TOKENS * number // (kills + 2)
            brake.move(share)
            await eventually(lambda n=16 * share: decoded(front) == n)  # type: ignore[misc]
            await until_running_again(front, kill_engine(front))
        brake.let_go()
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
    brake = Brake(tmp_path, TOKENS // 2)
    async with running_front(tmp_path, *brake.options) as (front, record):
        texts = [counted_text(candidate_seed(1, i), TOKENS) for i in range(3)]
        stop = texts[1][5:8]
        handle = await front.generate(
            call(count_prompt(), seed=1, candidate_count=3, max_tokens=TOKENS, stop=(stop,))
        )
        result = asyncio.create_task(collect(handle))
        await eventually(lambda: bool(record.aborted_ids()))
        await until_running_again(front, kill_engine(front))
        brake.let_go()
        outcome = await result
        assert outcome.texts == {0: texts[0], 1: texts[1][: texts[1].index(stop)], 2: texts[2]}
        resumed = [s["seed"] for s in record.submitted() if s["resumed"]]
        assert resumed == [candidate_seed(1, 0), candidate_seed(1, 2)]


async def test_a_death_before_the_figures_of_an_ended_candidate_ends_the_request(
    tmp_path: Path,
) -> None:
    brake = Brake(tmp_path, 20)
    async with running_front(tmp_path, "--ignore-aborts", *brake.options) as (front, record):
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
    async with running_front(tmp_path, **LONG_PAUSE) as (front, record):
        kill_engine(front)
        await eventually(lambda: front.state is FrontState.RESTARTING)
        handle = await front.generate(call(say("late")))
        assert front.stats().waiting_requests == 1
        with pytest.raises(NotReady):
            await front.lookup([1])
        let_time_pass(PAUSE_SECONDS)
        assert (await collect(handle)).text == "late"
        assert len(record.submitted()) == 1


async def test_what_is_cancelled_during_a_restart_never_reaches_an_engine(tmp_path: Path) -> None:
    async with running_front(tmp_path, **LONG_PAUSE) as (front, record):
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
        let_time_pass(PAUSE_SECONDS)
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


async def test_streams_wait_while_others_have_the_memory_of_a_new_engine(tmp_path: Path) -> None:
    """Many more tries than a crash loop is allowed."""
    taken, brake = tmp_path / "taken", Brake(tmp_path, 60)
    async with running_front(
        tmp_path,
        *("--kept-out", str(taken), *brake.options),
        restart_limit=1,
        restart_delay_seconds=0.0,
        flight_folder=str(tmp_path / "flight"),
    ) as (front, record):
        result = asyncio.create_task(
            collect(await front.generate(call(count_prompt(), seed=1, max_tokens=900)))
        )
        await eventually(lambda: decoded(front) == 60)
        taken.touch()
        kill_engine(front)
        await eventually(lambda: len(record.lines("Start")) > 5)
        assert front.state is FrontState.RESTARTING
        assert not result.done()
        taken.unlink()
        brake.let_go()
        assert (await result).text == counted_text(1, 900)
        deaths = front.stats().engine_restarts
        await eventually(lambda: front.stats().flight_records == 2)
        assert deaths >= 5, "the record of what began it is not pushed out"


async def test_patience_with_those_who_have_the_memory_has_an_end(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    async with running_front(
        tmp_path, *("--kept-out", str(taken)), restart_patience_seconds=0.3
    ) as (front, _):
        handle = await front.generate(call(count_prompt(), max_tokens=TOKENS))
        taken.touch()
        kill_engine(front)
        with pytest.raises(EngineLost):
            await collect_rest(handle)
        assert front.state is FrontState.FAILED
        assert (front.failure or "").startswith(
            "the engine cannot start again; last: others have the memory"
        )


async def test_streams_wait_while_there_is_no_descriptor_for_a_new_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socketpair, refusals = socket.socketpair, iter(range(4))

    def scarce() -> tuple[socket.socket, socket.socket]:
        if next(refusals, None) is None:
            return socketpair()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with running_front(tmp_path, restart_limit=1, restart_delay_seconds=0.0) as (front, _):
        handle = await front.generate(call(count_prompt(), seed=1, max_tokens=TOKENS))
        monkeypatch.setattr("service.front.supervisor.socket.socketpair", scarce)
        kill_engine(front)
        assert (await collect(handle)).text == counted_text(1, TOKENS)
        assert front.stats().engine_restarts == 5


async def test_a_program_that_does_not_exist_ends_in_failed(tmp_path: Path) -> None:
    async with running_front(
        tmp_path, ready=False, restart_limit=0, command=["/no/such/program"]
    ) as (front, _):
        with pytest.raises(EngineFailed, match="cannot be started"):
            await front.wait_ready()


async def test_a_mistake_of_the_supervisor_does_not_leave_clients_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call(count_prompt(5), max_tokens=TOKENS))
        monkeypatch.setattr("service.front.supervisor.engine_death", fail)
        kill_engine(front)
        with pytest.raises(EngineLost):
            await collect(handle)
        assert front.state is FrontState.FAILED
        assert front.failure == "supervisor failed: ZeroDivisionError: ours"


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
    brake = Brake(tmp_path, 20)
    async with running_front(tmp_path, *brake.options, engine_silence_seconds=1.0) as (
        front,
        record,
    ):
        results = [
            asyncio.create_task(
                collect(await front.generate(call(count_prompt(), f"r{i}", seed=i, max_tokens=900)))
            )
            for i in range(4)
        ]
        await eventually(lambda: decoded(front) == 4 * 20)
        frozen = front.engine_process_id
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        brake.let_go()
        texts = [(await result).text for result in results]
        assert texts == [counted_text(i, 900) for i in range(4)]
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
        kill_engine(front)
        with pytest.raises(EngineLost):
            await handle.next()
        # Nor is the tokenizer of the one used for the other.
        assert front.state is FrontState.FAILED
        assert "files of the model were replaced" in (front.failure or "")
        with pytest.raises(NotReady):
            await front.generate(call(say("x")))


@pytest.mark.slow
async def test_an_engine_that_does_not_read_gets_bounded_memory(tmp_path: Path) -> None:
    """Submissions wait in the front, where they can be cancelled, not in the socket."""
    async with running_front(
        tmp_path, "--deaf", max_waiting_requests=400, engine_silence_seconds=300.0
    ) as (front, record):
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
