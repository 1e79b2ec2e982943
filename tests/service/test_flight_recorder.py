"""What the recorder puts into a record, without a front around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flight_fakes import engine_stats, vitals

from kvcache.pressure import PressureLevel
from service.config import ServeSettings
from service.engine.figures import Incident, OomRung
from service.engine.messages import Ready
from service.flight.folder import FlightFolder, read_record
from service.flight.kinds import FlightKind
from service.flight.record import FlightRecord, Place
from service.front.engine_death import EngineDeath
from service.front.flight import FlightRecorder


@pytest.fixture(autouse=True)
def _time_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that stops leaves behind what a slow disk has not taken; here that is no matter."""
    monkeypatch.setattr("service.front.flight._CLOSE_SECONDS", 120.0)


@dataclass(eq=False)
class Request:
    """As much of a `LiveRequest` as is written down."""

    call: SimpleNamespace
    account: SimpleNamespace
    output_tokens: int = 0
    candidates: tuple[()] = ()


def request(number: int) -> Any:
    call = SimpleNamespace(request_id=f"r{number}", tenant="t")
    return Request(call, SimpleNamespace(prompt_tokens=5, arrival_seconds=0.0))


class Stage:
    """A recorder and the folder that it writes to."""

    def __init__(self, folder: Path, requests: list[Any], in_engine: dict[int, Any]) -> None:
        self._folder = FlightFolder(folder)
        settings = ServeSettings(flight_folder=str(folder))
        self.recorder = FlightRecorder(settings, requests, in_engine)
        self.recorder.start()

    async def records(self) -> list[FlightRecord]:
        """Oldest first; ends the recorder."""
        await self.recorder.close()
        return [read_record(self._folder.path / str(name)) for name in self._folder.names()]


async def test_critical_is_recorded_when_it_is_entered_and_not_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.front.flight._CRITICAL_PAUSE_SECONDS", 0.0)
    stage = Stage(tmp_path, [], {})
    normal, critical = PressureLevel.NORMAL, PressureLevel.CRITICAL
    for level in (normal, critical, critical, critical, normal, critical, critical):
        stage.recorder.reported(engine_stats(vitals=vitals(level=level)))
    assert [record.kind for record in await stage.records()] == [FlightKind.CRITICAL] * 2


async def test_the_memory_of_an_engine_is_not_told_as_that_of_the_next(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [], {})
    stage.recorder.engine_ready(ready(), 1)
    stage.recorder.reported(engine_stats())
    stage.recorder.engine_died(EngineDeath("the first", crashed=False))
    stage.recorder.engine_restarting()
    stage.recorder.engine_died(EngineDeath("the second, before it told anything", crashed=True))
    first, second = await stage.records()
    assert first.memory is not None
    assert (second.memory, second.engine.life) == (None, 2)
    assert second.signals.engine_life == [1], "what was before is of interest"


async def test_of_engines_in_a_row_that_never_got_ready_the_first_is_recorded(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, [], {})
    for cause in ("ready", "no memory", "still none", "ready", "none again"):
        if cause == "ready":
            stage.recorder.engine_ready(ready(), 1)
        stage.recorder.engine_died(EngineDeath(cause, crashed=False))
        stage.recorder.engine_restarting()
    causes = [record.cause for record in await stage.records()]
    assert causes == ["ready", "no memory", "ready", "none again"]


def ready() -> Ready:
    return Ready("v", 2000, 4096, 16, 1000, 1000, 1024, "none", "none", "none", "none", 0.0)


def oom(kind: str = "oom") -> Incident:
    return Incident(kind, "a step failed", OomRung.RETRY, 7, [], 5, None)


async def test_the_last_oom_outlives_the_server(tmp_path: Path) -> None:
    first = Stage(tmp_path, [], {})
    assert first.recorder.last_oom_time is None
    first.recorder.incident(oom())
    oom_time = first.recorder.last_oom_time
    first.recorder.incident(oom("device lost"))
    assert first.recorder.last_oom_time == oom_time is not None
    first.recorder.gave_up("a newer record")
    record, *_ = await first.records()
    assert 0 <= (record.time - oom_time).total_seconds() < 60

    second = Stage(tmp_path, [], {})
    await second.recorder.close()  # has looked by then
    assert second.recorder.last_oom_time == record.time
    third = Stage(tmp_path, [], {})
    third.recorder.incident(oom())
    newest = third.recorder.last_oom_time
    assert newest is not None
    assert newest > record.time
    await third.recorder.close()
    assert third.recorder.last_oom_time == newest


async def test_an_oom_is_dated_though_nothing_is_recorded(tmp_path: Path) -> None:
    settings = ServeSettings(flight_folder=str(tmp_path), flight_records=0)
    recorder = FlightRecorder(settings, [], {})
    recorder.incident(oom())
    assert recorder.last_oom_time is not None


async def test_of_many_requests_those_of_the_batch_are_written_down_first(tmp_path: Path) -> None:
    requests = [request(number) for number in range(600)]
    in_engine = {7: requests[598], 8: requests[599]}
    stage = Stage(tmp_path, requests, in_engine)
    stage.recorder.incident(
        Incident(
            kind="oom",
            cause="none left",
            rung=None,
            wanted_bytes=1,
            sequence_ids=[8, 9],  # 9 has ended meanwhile
            step_tokens=2,
            vitals=None,
        )
    )
    (record,) = await stage.records()
    assert record.requests_total == 600
    assert len(record.requests) == 512
    told = [(one.request_id, one.place) for one in record.requests[:3]]
    assert told == [("r599", Place.BATCH), ("r598", Place.ENGINE), ("r0", Place.FRONT)]
    assert record.incident is not None
    assert record.incident.batch_sequences == 2
