"""Start, drain, resume, stop, and who hears of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import uvloop
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
from scripted_engine import HOLD, WAIT

from kvcache.pressure import PressureLevel
from service.config import EngineSettings
from service.config.engine import SETTINGS_VARIABLE
from service.front.events import Draining
from service.front.state import FrontState


def process_is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_facts_of_the_model(tmp_path: Path) -> None:
    async with running_front(tmp_path, served_model_name="mine") as (front, _):
        assert front.model is not None
        assert front.model.name == "mine"
        assert front.model.version == "scripted"
        assert front.model.eos_ids == (256,)
        assert front.state is FrontState.READY


async def test_settings_of_the_engine_are_not_shown_in_its_command_line(tmp_path: Path) -> None:
    engine = EngineSettings(
        model="scripted", host_cache_bytes=1 << 20, remote_cache_url="redis://:secret@host/0"
    )
    async with running_front(tmp_path, engine=engine) as (front, _):
        process = psutil.Process(front.engine_process_id)
        assert "secret" not in " ".join(process.cmdline())
        given = process.environ()[SETTINGS_VARIABLE]
    assert msgspec.json.decode(given, type=EngineSettings) == engine


async def test_drain_waits_for_live_requests_and_refuses_new_ones(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        result = asyncio.create_task(
            collect(await front.generate(call(count_prompt(), seed=1, max_tokens=300)))
        )
        draining = asyncio.create_task(front.drain(None))
        await asyncio.sleep(0)
        assert front.state is FrontState.DRAINING
        with pytest.raises(Draining):
            await front.generate(call(say("x"), "x"))
        drained = await draining
        assert (drained.completed, drained.aborted) == (1, 0)
        assert (await result).text == counted_text(1, 300)
        front.resume()
        assert front.state is FrontState.READY
        assert (await collect(await front.generate(call(say("x"), "x")))).text == "x"


async def test_drain_ends_what_is_left_after_the_grace(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        handles = [
            await front.generate(call(prompt, f"r{i}"))
            for i, prompt in enumerate(([HOLD], [WAIT], say("done")))
        ]
        result = asyncio.create_task(collect(handles[2]))
        draining = asyncio.create_task(front.drain(3600.0))
        assert (await result).text == "done"
        assert not draining.done()
        let_time_pass(3600.0)
        drained = await draining
        assert (drained.completed, drained.aborted) == (1, 2)
        for handle in handles[:2]:
            with pytest.raises(Draining):
                await collect(handle)
        await eventually(lambda: sorted(record.aborted_ids()) == [1, 2])
        assert front.stats().live_requests == 0
        again = await front.drain(0.0)
        assert (again.completed, again.aborted) == (0, 0)


async def test_resume_ends_a_drain_and_aborts_nothing(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call([HOLD]))
        draining = asyncio.create_task(front.drain(None))
        await asyncio.sleep(0)
        front.resume()
        drained = await draining
        assert (drained.completed, drained.aborted) == (0, 0)
        assert front.stats().live_requests == 1
        handle.close()


async def test_stop_ends_everything_and_leaves_no_process(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        pid = front.engine_process_id
        assert pid is not None
        handle = await front.generate(call([HOLD]))
        await front.stop()
        await front.stop()
        assert front.state is FrontState.STOPPED
        assert process_is_gone(pid)
        with pytest.raises(Draining):
            await collect(handle)
        with pytest.raises(Draining):
            await front.generate(call(say("x"), "x"))


async def test_stop_kills_an_engine_that_is_still_loading(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--hang-at-start", ready=False) as (front, record):
        await eventually(lambda: front.engine_process_id is not None)
        pid = front.engine_process_id
        await eventually(lambda: record.path.exists() and bool(record.lines("Start")))
        await front.stop()
        assert pid is not None
        assert process_is_gone(pid)


async def test_stop_right_after_start(tmp_path: Path) -> None:
    async with running_front(tmp_path, ready=False) as (front, _):
        await front.stop()
        assert front.engine_process_id is None


async def test_state_changes_can_be_watched(tmp_path: Path) -> None:
    async with running_front(tmp_path, ready=False) as (front, _):
        states = front.watch_state()
        assert await anext(states) is FrontState.STARTING
        assert await anext(states) is FrontState.READY
        draining = asyncio.create_task(front.drain(0.0))
        assert await anext(states) is FrontState.DRAINING
        await draining
        front.resume()
        assert await anext(states) is FrontState.READY
        await states.aclose()  # type: ignore[attr-defined]


async def test_pressure_rises_with_the_queue_and_falls_again(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--heartbeat", max_waiting_requests=2) as (front, _):
        await eventually(lambda: front.stats().engine is not None)
        changes = front.watch()
        assert await anext(changes) is PressureLevel.NORMAL
        handles = [await front.generate(call([WAIT], f"w{i}")) for i in range(2)]
        assert await anext(changes) is PressureLevel.CRITICAL
        for handle in handles:
            handle.close()
        assert await anext(changes) is PressureLevel.NORMAL
        assert front.stats().pressure is PressureLevel.NORMAL
        await changes.aclose()  # type: ignore[attr-defined]


def test_it_works_on_uvloop(tmp_path: Path) -> None:
    async def scenario() -> None:
        brake = Brake(tmp_path, 50)
        async with running_front(tmp_path, *brake.options) as (front, _):
            handles = [
                await front.generate(call(count_prompt(), f"r{i}", seed=i, max_tokens=300))
                for i in range(4)
            ]
            results = [asyncio.create_task(collect(handle)) for handle in handles]
            await handles_started(front)
            pid = front.engine_process_id
            assert pid is not None
            os.kill(pid, 9)
            brake.let_go()
            texts = [(await result).text for result in results]
            assert texts == [counted_text(i, 300) for i in range(4)]

    async def handles_started(front: Any) -> None:
        await eventually(lambda: decoded(front) == 4 * 50)

    uvloop.run(scenario())
