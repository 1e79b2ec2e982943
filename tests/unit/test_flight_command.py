"""`plimsoll flight`: what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from flight_fakes import BEGAN, engine_stats, flight_record, vitals

from kvcache.pressure import PressureLevel
from service.cli import main
from service.cli.flight_text import show_lines
from service.flight.folder import FlightFolder
from service.flight.kinds import FlightKind
from service.flight.record import (
    EngineFacts,
    IncidentFacts,
    Place,
    RequestFacts,
)
from service.flight.signals import Sample, columns


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlightFolder:
    made = FlightFolder(tmp_path / "flight")
    made.make()
    monkeypatch.setenv("PLIMSOLL_FLIGHT_FOLDER", str(made.path))
    return made


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["flight", *arguments]) == status
    output = capsys.readouterr()
    return output.err if status else output.out


def test_list_shows_the_newest_first_and_every_file(
    folder: FlightFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        folder.write(flight_record(number), 0)
    (folder.path / "notes.txt").write_text("mine")
    (folder.path / os.fsdecode(b"z\xff")).write_text("not UTF-8")
    damaged = f"{BEGAN + timedelta(hours=1):%Y%m%dT%H%M%S.%f}Z-1-0000-oom.json"
    (folder.path / damaged).write_text('{"kind"')
    lines = printed(capsys, "list").splitlines()
    assert lines[0] == str(folder.path)
    assert lines[1].startswith(f"{damaged}  damaged: not a whole flight record")
    assert lines[2].endswith("oom.json  cause 1")
    assert lines[3].endswith("oom.json  cause 0")
    assert lines[4] == "notes.txt  not a flight record"
    assert lines[5] == "z\ufffd  not a flight record"
    rows = json.loads(printed(capsys, "list", "--json"))
    assert [row["cause"] for row in rows] == [None, "cause 1", "cause 0", None, None]
    assert rows[1]["time"] == "2026-11-30T12:00:01Z"
    assert (rows[1]["kind"], rows[1]["engine_life"], rows[1]["requests_total"]) == ("oom", 1, 1)
    assert rows[0]["problem"].startswith("not a whole")
    assert len(list(folder.path.iterdir())) == 5


def test_show_takes_a_name_a_file_or_the_newest(
    folder: FlightFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [folder.write(flight_record(number), 0) for number in range(2)]
    copy = tmp_path / "copied.json"
    copy.write_bytes((folder.path / str(names[0])).read_bytes())
    assert "cause 1" in printed(capsys, "show")
    assert "cause 0" in printed(capsys, "show", str(names[0]))
    assert "cause 0" in printed(capsys, "show", str(copy))
    document = json.loads(printed(capsys, "show", "--json"))
    assert msgspec.convert(document, type(flight_record())) == flight_record(1)


def test_the_folder_of_a_flag_counts_before_that_of_the_environment(
    folder: FlightFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write(flight_record(), 0)
    other = tmp_path / "other"
    other.mkdir()
    assert "there are no flight records" in printed(capsys, "list", "--folder", str(other))
    config = tmp_path / "plimsoll.toml"
    config.write_text(f'flight_folder = "{other}"\n')
    assert "cause 0" in printed(capsys, "list", "--config", str(config))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["show"], 1, "there are no flight records"),
        (["show", "nothing.json"], 1, "there is no record nothing.json; `plimsoll flight list`"),
        (["list", "--folder", "/nonexistent"], 1, "/nonexistent: No such file"),
        (["list", "a-name"], 2, "`list` takes no name"),
        (["show", "--folder", ""], 2, "flight_folder = '' (flag --flight-folder)"),
    ],
)
def test_mistakes_are_told_in_one_line(
    folder: FlightFolder,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    output = printed(capsys, *arguments, status=status)
    assert said in output
    assert len(output.splitlines()) == 1
    assert list(folder.path.iterdir()) == []


def test_a_damaged_record_cannot_be_shown(
    folder: FlightFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    name = folder.write(flight_record(), 0)
    path = folder.path / str(name)
    path.write_bytes(path.read_bytes()[:-10])
    assert "not a whole flight record" in printed(capsys, "show", status=1)


def test_an_oom_is_told_from_cause_to_versions() -> None:
    samples = [
        Sample(
            seconds=40.0 + i / 10,
            engine_life=2,
            live_requests=9,
            stats=engine_stats(
                running=i, vitals=vitals(level=PressureLevel.HIGH, device_free_bytes=i * 2**20)
            ),
        )
        for i in range(601)
    ]
    record = flight_record(
        cause="1 MiB wanted",
        engine=EngineFacts(life=2, process_id=5, ready_seconds=61.0, model_version="tiny"),
        incident=IncidentFacts("retry", 2**20, 64, 3),
        signals=columns(samples, 100.0),
        requests_total=700,
        requests=[RequestFacts(f"r{i}", "", 5, 6, 1, 2.5, Place.BATCH) for i in range(512)],
    )
    lines = show_lines(record)
    text = "\n".join(lines)
    assert lines[0] == "oom at 2026-11-30 12:00:00.000 UTC"
    assert lines[1] == "cause     1 MiB wanted"
    assert "number 2, process 5, ready for 61.0 s, model tiny" in text
    assert "rung retry, 1.0 MiB wanted, step of 64 tokens, 3 sequences" in text
    rows = [line.split() for line in lines if line.strip().startswith("-") or " 0.0 " in line]
    times = [float(row[0]) for row in rows if row[1:2] == ["2"]]
    assert times[0] == -60.0
    assert times[-1] == 0.0
    assert times == sorted(times)
    assert len(times) == 12
    assert "requests in flight: 700" in lines
    assert "… and 680 more" in text
    assert "high" in text
    assert "never" in text  # will the KV blocks run out
    assert len(lines) < 70


def test_bars_are_shares_of_the_device() -> None:
    lines = show_lines(flight_record())
    assert next(line for line in lines if line.startswith("  kv pool")).count("#") == 10
    assert next(line for line in lines if line.startswith("  free")).count("#") == 16
    assert next(line for line in lines if line.startswith("  graphs")).count("#") == 0


def test_what_is_in_a_file_cannot_reach_the_terminal(
    folder: FlightFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    escape = "\x1b[2J\r\n\x07\u202e"
    request = RequestFacts(f"id{escape}", f"t{escape}", 1, 1, 1, 0.0, Place.FRONT)
    folder.write(flight_record(cause=f"bad{escape}", requests=[request]), 0)
    (folder.path / f"x{escape}".replace("/", "")).write_text("")
    for arguments in (["list"], ["show"]):
        output = printed(capsys, *arguments)
        assert "\ufffd[2J" in output
        assert all(line.isprintable() for line in output.split("\n"))


def test_a_record_of_another_version_lacks_columns_and_is_shown() -> None:
    record = flight_record(kind=FlightKind.OTHER)
    del record.signals.engine["preempted"]
    del record.signals.vitals["demand_bytes"]
    record.signals.live_requests.clear()
    text = "\n".join(show_lines(msgspec.structs.replace(record, memory=None)))
    assert " - " in text


def test_a_death_before_the_first_report() -> None:
    record = flight_record(
        kind=FlightKind.ENGINE_DEATH,
        crashed=True,
        memory=None,
        requests=[],
        requests_total=0,
        signals=columns([], 0.0),
    )
    text = "\n".join(show_lines(record))
    assert "not ready yet" in text
    assert "no signals" in text
    assert "requests in flight: none" in text
    assert "it may have crashed by itself" in text
