"""Engines in trouble under live streams: what is told of them must not change what is served."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import troubled_engine
from engine_deaths import kill_engine, steps_of, until_running_again
from front_fakes import Result, call, collect, count_prompt, counted_text, eventually, running_front
from troubled_engine import Ending, Trouble, trouble_prompt

from service.flight.folder import FlightFolder
from service.flight.names import RecordName
from service.flight.record import FlightRecord
from service.front import flight
from service.front.events import DeviceExhausted
from service.front.front import Front
from service.front.state import FrontState

TROUBLED = (sys.executable, troubled_engine.__file__)
TOKENS = 60
RUNGS = {Trouble.RUNG: 1, Trouble.STRANGERS: 1, Trouble.STORM: 40}


@pytest.fixture(autouse=True)
def _time_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that stops leaves behind what a slow disk has not taken; here that is no matter."""
    monkeypatch.setattr("service.front.flight._CLOSE_SECONDS", 120.0)


async def start(front: Front, prompts: list[list[int]]) -> list[asyncio.Task[Result]]:
    """One stream for each prompt, with its number as seed."""
    return [
        asyncio.create_task(
            collect(await front.generate(call(prompt, f"r{i}", seed=i, max_tokens=TOKENS)))
        )
        for i, prompt in enumerate(prompts)
    ]


async def expect_whole(results: list[asyncio.Task[Result]]) -> None:
    """All that each would have said alone, once."""
    for i, result in enumerate(results):
        assert (await result).text == counted_text(i, TOKENS)


@pytest.mark.parametrize(
    "trouble", [Trouble.RUNG, Trouble.STORM, Trouble.STRANGERS, Trouble.CRITICAL, Trouble.NONE]
)
@pytest.mark.parametrize("ending", list(Ending))
async def test_streams_are_whole_after_trouble_and_death(
    tmp_path: Path, trouble: Trouble, ending: Ending
) -> None:
    async with running_front(tmp_path, command=TROUBLED) as (front, _):
        prompts = [count_prompt() for _ in range(8)]
        prompts[3] = trouble_prompt(TOKENS // 2, trouble, ending)
        await expect_whole(await start(front, prompts))
        stats = front.stats()
        assert front.state is FrontState.READY
    assert stats.engine_restarts == (ending is not Ending.NONE)
    assert stats.completed_requests == 8
    assert stats.failed_requests == 0
    assert stats.engine is not None
    assert stats.engine.vitals is not None
    # A step without memory counts, whatever became of the engine.
    assert sum(stats.engine.vitals.rungs) == RUNGS.get(trouble, 0)


async def test_one_that_finds_no_memory_ends_alone(tmp_path: Path) -> None:
    async with running_front(tmp_path, command=TROUBLED) as (front, _):
        prompts = [count_prompt() for _ in range(4)]
        prompts.append(trouble_prompt(20, Trouble.EXHAUSTED))
        *others, exhausted = await start(front, prompts)
        with pytest.raises(DeviceExhausted) as error:
            await exhausted
        await expect_whole(others)
        assert front.stats().failed_requests == 1
        assert front.stats().engine_restarts == 0
    facts = error.value
    assert (facts.wanted_bytes, facts.free_bytes, facts.total_bytes) == (4096, 7, 1000)
    assert facts.tokens_sent <= 20
    assert facts.retry_after_seconds > 0


async def test_an_engine_that_dies_right_after_an_exhausted_one(tmp_path: Path) -> None:
    """The report of the end may be lost with the engine: the request is computed again then."""
    async with running_front(tmp_path, command=TROUBLED) as (front, _):
        prompts = [count_prompt(), trouble_prompt(20, Trouble.EXHAUSTED, Ending.KILLED)]
        await expect_whole(await start(front, prompts))


@pytest.mark.parametrize("seed", range(4))
async def test_random_troubles_and_deaths(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    troubles = [Trouble.NONE, Trouble.RUNG, Trouble.STRANGERS, Trouble.CRITICAL, Trouble.STORM]
    async with running_front(
        tmp_path, command=TROUBLED, flight_folder=str(tmp_path / "flight"), flight_records=9
    ) as (front, _):
        prompts = [
            trouble_prompt(
                chance.randrange(TOKENS),
                chance.choice(troubles),
                chance.choice([Ending.NONE, Ending.NONE, Ending.KILLED, Ending.ABORTED]),
            )
            for _ in range(24)
        ]
        await expect_whole(await start(front, prompts))
        assert front.stats().failed_requests == 0
    assert 0 < len(FlightFolder(tmp_path / "flight").names()) <= 9


async def test_clients_that_leave_during_trouble_leave_nothing_behind(tmp_path: Path) -> None:
    async with running_front(tmp_path, command=TROUBLED) as (front, _):
        handles = [
            await front.generate(
                call(trouble_prompt(5, Trouble.STORM, Ending.KILLED), f"r{i}", max_tokens=4000)
            )
            for i in range(8)
        ]
        for handle in handles[:4]:
            handle.close()
        results = [asyncio.create_task(collect(handle)) for handle in handles[4:]]
        await eventually(lambda: front.stats().engine_restarts > 0)
        for handle in handles[4:]:
            handle.close()
        await asyncio.gather(*results)
        await eventually(lambda: front.stats().live_requests == 0)


class StandingDisk:
    """A disk that stands still until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.waits = threading.Event()
        write = FlightFolder.write

        def stand_still(folder: FlightFolder, record: FlightRecord, serial: int) -> RecordName:
            self.waits.set()
            assert self.go.wait(250)
            return write(folder, record, serial)

        monkeypatch.setattr(FlightFolder, "write", stand_still)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandingDisk]:
    made = StandingDisk(monkeypatch)
    yield made
    made.go.set()


async def test_a_disk_that_stands_still_is_not_felt(
    tmp_path: Path, disk: StandingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams, deaths, statistics and the stop go on while not one record can be written."""
    monkeypatch.setattr(flight, "_CLOSE_SECONDS", 0.05)
    folder = tmp_path / "flight"
    async with running_front(tmp_path, command=TROUBLED, flight_folder=str(folder)) as (front, _):
        await until_running_again(front, kill_engine(front))
        await asyncio.to_thread(disk.waits.wait, 120)
        assert disk.waits.is_set()
        prompts = [count_prompt() for _ in range(8)]
        prompts[0] = trouble_prompt(10, Trouble.STORM)
        prompts[1] = trouble_prompt(TOKENS // 2, Trouble.STORM, Ending.KILLED)
        await expect_whole(await start(front, prompts))
        stats = front.stats()
        assert stats.flight_records == 0
        assert stats.lost_flight_records > 0
        assert stats.engine_restarts == 2
    assert front.state is FrontState.STOPPED
    assert FlightFolder(folder).names() == []


async def test_what_waited_for_the_disk_is_written_in_the_end(
    tmp_path: Path, disk: StandingDisk
) -> None:
    folder = tmp_path / "flight"
    async with running_front(tmp_path, command=TROUBLED, flight_folder=str(folder)) as (front, _):
        for _ in range(3):
            await until_running_again(front, kill_engine(front))
        assert front.stats().flight_records == 0
        disk.go.set()
    assert len(FlightFolder(folder).names()) == 3


async def test_the_counters_go_on_when_an_engine_dies_in_trouble(tmp_path: Path) -> None:
    async with running_front(tmp_path, command=TROUBLED) as (front, _):
        results = await start(front, [trouble_prompt(30, Trouble.RUNG, Ending.ABORTED)])
        await expect_whole(results)
        engine = front.stats().engine
        assert engine is not None
        assert engine.decode_tokens >= TOKENS - 1  # of both engines together
        assert steps_of(front) >= TOKENS - 1
        assert engine.vitals is not None
        assert engine.vitals.device_total_bytes == 1000
