"""What a front writes down when its engines get into trouble, and that it is not disturbed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import troubled_engine
from engine_deaths import kill_engine, until_running_again
from front_fakes import call, collect, count_prompt, counted_text, eventually, running_front
from scripted_engine import COUNT, CRASH, WAIT
from troubled_engine import Ending, Trouble, trouble_prompt

from service.config import EngineSettings, ServeSettings
from service.flight.folder import FlightFolder, read_record
from service.flight.kinds import FlightKind
from service.flight.record import FlightRecord, Place
from service.flight.surroundings import without_secrets
from service.front.events import EngineCrashedByRequest
from service.front.state import EngineFailed, FrontState

TROUBLED = (sys.executable, troubled_engine.__file__)


@pytest.fixture(autouse=True)
def _time_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that stops leaves behind what a slow disk has not taken; here that is no matter."""
    monkeypatch.setattr("service.front.flight._CLOSE_SECONDS", 120.0)


def records(folder: Path) -> list[FlightRecord]:
    """Oldest first."""
    return [read_record(folder / str(name)) for name in FlightFolder(folder).names()]


def kinds(folder: Path) -> list[FlightKind]:
    return [record.kind for record in records(folder)]


async def test_a_rung_is_on_disk_while_streams_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    async with running_front(tmp_path, command=TROUBLED, flight_folder=str(folder)) as (front, _):
        waiting = await front.generate(call([WAIT], "waiting", tenant="t"))
        handle = await front.generate(
            call(trouble_prompt(20, Trouble.RUNG), "victim", seed=3, max_tokens=400)
        )
        result = asyncio.create_task(collect(handle))
        await eventually(lambda: front.stats().flight_records == 1)
        assert not result.done() or (await result)
        (record,) = records(folder)
        assert (await result).text == counted_text(3, 400)
        waiting.close()
        stats = front.stats()
    assert record.kind is FlightKind.OOM
    assert record.cause == stats.last_flight_cause == "oom as ordered"
    assert record.time == stats.last_flight_time
    assert record.incident is not None
    assert (record.incident.rung, record.incident.wanted_bytes) == ("retry", 4096)
    assert record.engine.life == 1
    assert record.engine.process_id is not None
    assert record.engine.model_version == "scripted"
    assert record.memory is not None
    assert record.memory.free_bytes == 7  # as of the incident, not of the last report
    assert record.memory.headroom_bytes == 107
    facts = {request.request_id: request for request in record.requests}
    assert facts.keys() == {"waiting", "victim"}
    assert facts["waiting"].tenant == "t"
    assert facts["victim"].output_tokens == 20
    assert facts["victim"].prompt_tokens == 4
    assert {request.place for request in record.requests} == {Place.BATCH}
    assert len(record.signals.seconds) > 0
    assert all(-60.0 <= seconds <= 0.0 for seconds in record.signals.seconds)
    assert record.settings["flight_folder"] == str(folder)
    assert record.versions["msgspec"] is not None


async def test_no_words_of_a_request_are_in_a_record(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    secret_id = 8_765_432_101_234  # no other figure is like it
    async with running_front(tmp_path, flight_folder=str(folder)) as (front, _):
        handle = await front.generate(
            call([COUNT, secret_id], seed=9, max_tokens=2000, stop=("a secret word",))
        )
        result = asyncio.create_task(collect(handle))
        await eventually(lambda: front.stats().engine is not None)
        kill_engine(front)
        await eventually(lambda: front.stats().flight_records == 1)
        handle.close()
        await result
    (path,) = folder.iterdir()
    text = path.read_text()
    assert "secret" not in text
    assert counted_text(9, 8) not in text
    assert str(secret_id) not in text


async def test_last_words_and_the_death_that_follows(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    async with running_front(tmp_path, command=TROUBLED, flight_folder=str(folder)) as (front, _):
        pid = front.engine_process_id
        prompt = trouble_prompt(5, Trouble.DEVICE_LOST, Ending.ABORTED)
        handle = await front.generate(call(prompt, seed=1, max_tokens=50))
        assert (await collect(handle)).text == counted_text(1, 50)
        stats = front.stats()
    lost, death = records(folder)
    assert (lost.kind, lost.cause) == (FlightKind.DEVICE_LOST, "device lost as ordered")
    assert (death.kind, death.crashed) == (FlightKind.ENGINE_DEATH, True)
    assert death.cause == "device lost as ordered; killed by SIGABRT"
    assert death.engine.process_id == pid
    assert death.engine.ready_seconds is not None
    assert [request.place for request in death.requests] == [Place.ENGINE]
    assert stats.engine_restarts == 1


async def test_each_life_of_the_engine_has_its_number(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    async with running_front(tmp_path, flight_folder=str(folder)) as (front, _):
        pids = []
        for _ in range(3):
            pid = kill_engine(front)
            pids.append(pid)
            await until_running_again(front, pid)
    found = records(folder)
    assert [record.engine.life for record in found] == [1, 2, 3]
    assert [record.engine.process_id for record in found] == pids
    assert [record.crashed for record in found] == [False] * 3


async def test_a_conviction_names_the_convicted_alone(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    async with running_front(tmp_path, flight_folder=str(folder)) as (front, _):
        bystander = await front.generate(call(count_prompt(), "bystander", max_tokens=4000))
        handle = await front.generate(call([CRASH, 3], "killer", seed=1, max_tokens=50))
        with pytest.raises(EngineCrashedByRequest):
            await collect(handle)
        bystander.close()
    (conviction,) = [r for r in records(folder) if r.kind is FlightKind.CONVICTION]
    batch = [r.request_id for r in conviction.requests if r.place is Place.BATCH]
    assert batch == ["killer"]
    assert kinds(folder).count(FlightKind.ENGINE_DEATH) >= 2


async def test_entering_critical_is_recorded_once_a_minute(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    async with running_front(tmp_path, command=TROUBLED, flight_folder=str(folder)) as (front, _):
        for number in range(3):
            prompt = trouble_prompt(2, Trouble.CRITICAL)
            await collect(await front.generate(call(prompt, f"r{number}", max_tokens=9)))
        await eventually(lambda: front.stats().flight_records > 0)
    (record,) = records(folder)
    assert record.kind is FlightKind.CRITICAL
    assert record.cause == (
        "pressure is CRITICAL: 500 bytes of headroom for steps of 80 bytes; forecast end of it: "
        "not in sight, of free KV blocks: not in sight; rungs of the OOM ladder so far: 0"
    )


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--crash-after-ready",), "the engine died too often; last: "),
        (("--start-failed", "no such model"), "no such model"),
    ],
    ids=["crash loop", "refused start"],
)
async def test_the_end_of_a_server_is_its_last_record(
    tmp_path: Path, options: tuple[str, ...], cause: str
) -> None:
    folder = tmp_path / "flight"
    async with running_front(
        tmp_path, *options, ready=False, restart_limit=2, flight_folder=str(folder)
    ) as (front, _):
        await eventually(lambda: front.state is FrontState.FAILED)
        failure = front.failure
        if "--start-failed" in options:
            with pytest.raises(EngineFailed, match=cause):
                await front.wait_ready()
    found = records(folder)
    assert found[-1].kind is FlightKind.GIVEN_UP
    assert found[-1].cause == failure
    assert found[-1].cause.startswith(cause)
    assert {record.kind for record in found[:-1]} == {FlightKind.ENGINE_DEATH}


async def test_records_of_an_earlier_server_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    async with running_front(tmp_path, flight_folder=str(folder)) as (front, _):
        await until_running_again(front, kill_engine(front))
    (before,) = records(folder)
    async with running_front(tmp_path, flight_folder=str(folder)) as (front, _):
        await eventually(lambda: front.stats().flight_records == 1)
        assert front.stats().last_flight_cause == before.cause
        assert front.stats().last_flight_time == before.time


async def test_a_storm_of_rungs_does_not_hide_the_death(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    async with running_front(
        tmp_path, command=TROUBLED, flight_folder=str(folder), flight_records=6
    ) as (front, _):
        prompts = [
            trouble_prompt(3, Trouble.STORM),
            trouble_prompt(30, Trouble.NONE, Ending.KILLED),
            trouble_prompt(60, Trouble.STORM),
        ]
        results = [
            asyncio.create_task(
                collect(await front.generate(call(prompt, f"r{i}", seed=i, max_tokens=80)))
            )
            for i, prompt in enumerate(prompts)
        ]
        for i, result in enumerate(results):
            assert (await result).text == counted_text(i, 80)
    found = kinds(folder)
    assert len(found) <= 6
    assert FlightKind.ENGINE_DEATH in found
    assert FlightKind.OOM in found


@pytest.mark.parametrize("settings", [{"flight_records": 0}, {"flight_folder": "/proc/nowhere"}])
async def test_a_server_without_records_serves_as_well(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with running_front(tmp_path, command=TROUBLED, **settings) as (front, _):
        prompt = trouble_prompt(3, Trouble.STORM, Ending.KILLED)
        result = await collect(await front.generate(call(prompt, seed=4, max_tokens=60)))
        assert result.text == counted_text(4, 60)
        assert front.stats().flight_records == 0
    assert (front.stats().lost_flight_records > 0) == ("flight_folder" in settings)


def test_passwords_are_not_in_a_record() -> None:
    engine = EngineSettings(
        model="some/model",
        host_cache_bytes=1 << 20,
        remote_cache_url="redis://me:pass@word@host:6379/0?password=too",
    )
    facts = without_secrets(ServeSettings(engine=engine))
    assert facts["engine"]["remote_cache_url"] == "redis://***host:6379/0***"
    assert facts["engine"]["model"] == "some/model"
    assert facts["port"] == 9000


SERVER = """
    import asyncio, sys
    from pathlib import Path
    from front_fakes import call, collect, count_prompt, running_front
    from troubled_engine import Trouble, trouble_prompt
    import troubled_engine

    async def main(folder: Path) -> None:
        command = (sys.executable, troubled_engine.__file__)
        async with running_front(folder, command=command, flight_folder=str(folder)) as (front, _):
            for number in range(100_000):
                prompt = trouble_prompt(1, Trouble.STORM)
                await collect(await front.generate(call(prompt, f"r{number}", max_tokens=2)))

    asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_killed_front_leaves_whole_records(tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    folder.mkdir()
    tests = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    for attempt in range(5):
        server = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SERVER), str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        # Killed while it writes, once it has written: at another moment each time.
        written = FlightFolder(folder).names()
        while not (
            any(folder.glob(f".*-{server.pid}-*.part")) and FlightFolder(folder).names() != written
        ):
            assert server.poll() is None
        for _ in range(attempt * 1000):
            pass
        server.send_signal(signal.SIGKILL)
        server.wait()
    listed = subprocess.run(
        [sys.executable, "-m", "service.cli", "flight", "list", "--json", "--folder", str(folder)],
        stdout=subprocess.PIPE,
        check=True,
    )
    rows = [row for row in json.loads(listed.stdout) if row["file"] != "engine.jsonl"]
    assert rows
    assert all(row["problem"] is None for row in rows)


DEFECTIVE = """
    import sys
    import service.api.server
    from service.cli import main

    def run(*_):
        raise RuntimeError("a mistake of ours")

    service.api.server.run = run
    main(["serve", "--termination-log", sys.argv[1]])
"""


def test_a_mistake_of_ours_is_in_the_termination_log_too(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DEFECTIVE), str(log)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert log.read_text() == "RuntimeError: a mistake of ours"
    assert ended.stderr.splitlines()[-1] == log.read_text()
