"""The thread that writes: nobody waits for the disk, and what is lost is counted."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flight_fakes import flight_record

from service.flight.folder import FlightFolder
from service.flight.kinds import FlightKind
from service.flight.names import RecordName
from service.flight.record import FlightRecord
from service.flight.writer import FlightWriter

OOM, DEATH = FlightKind.OOM, FlightKind.ENGINE_DEATH


class SlowFolder(FlightFolder):
    """A disk that stands still until it is let go, and can be full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()
        self.reached = threading.Event()
        self.full = False

    def write(self, record: FlightRecord, serial: int) -> RecordName:
        self.reached.set()
        assert self.go.wait(120)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(record, serial)


@pytest.fixture
def folder(tmp_path: Path) -> SlowFolder:
    return SlowFolder(tmp_path / "flight")


@pytest.fixture
def start(folder: SlowFolder) -> Iterator[Callable[..., FlightWriter]]:
    writers: list[FlightWriter] = []

    def started(limit: int = 32, pending_limit: int = 16) -> FlightWriter:
        writer = FlightWriter(folder, limit, pending_limit)
        writers.append(writer)
        writer.start()
        return writer

    yield started
    folder.go.set()
    for writer in writers:
        assert writer.close(120)


def put(writer: FlightWriter, number: int, kind: FlightKind = OOM) -> None:
    writer.put(kind, lambda: flight_record(number, kind))


def causes(folder: FlightFolder) -> list[str]:
    return [entry.headline.cause for entry in folder.entries() if entry.headline is not None]


def test_all_that_was_put_is_on_disk_after_close(
    folder: SlowFolder, start: Callable[..., FlightWriter]
) -> None:
    folder.go.set()
    writer = start()
    for number in range(5):
        put(writer, number)
    assert writer.close(120)
    assert causes(folder) == [f"cause {number}" for number in reversed(range(5))]
    assert (writer.facts.records, writer.facts.lost) == (5, 0)
    assert [name.serial for name in folder.names()] == list(range(5))
    assert writer.facts.last_cause == "cause 4"
    assert writer.facts.last_time == flight_record(4).time


def test_a_disk_that_stands_still_costs_nobody_anything_but_records(
    folder: SlowFolder, start: Callable[..., FlightWriter]
) -> None:
    writer = start(pending_limit=3)
    put(writer, 0)
    assert folder.reached.wait(120)  # it stands still with the first
    put(writer, 1, DEATH)
    for number in range(2, 10):
        put(writer, number)
    assert writer.facts.lost == 6
    assert not writer.close(0.01)
    folder.go.set()
    assert writer.close(120)
    # A storm of rungs has not pushed out the death, and the newest of them are there.
    assert causes(folder) == ["cause 9", "cause 8", "cause 1", "cause 0"]


def test_a_full_disk_is_counted_and_what_comes_later_is_written(
    folder: SlowFolder, start: Callable[..., FlightWriter]
) -> None:
    folder.go.set()
    folder.full = True
    writer = start()
    for number in range(3):
        put(writer, number)
    while writer.facts.lost < 3:
        pass
    assert writer.facts.last_cause is None
    folder.full = False
    put(writer, 3)
    assert writer.close(120)
    assert causes(folder) == ["cause 3"]
    assert (writer.facts.records, writer.facts.lost) == (1, 3)


def test_a_record_that_cannot_be_made_ends_nothing(
    folder: SlowFolder, start: Callable[..., FlightWriter]
) -> None:
    folder.go.set()
    writer = start()

    def fail() -> FlightRecord:
        raise RuntimeError("a mistake of ours")

    writer.put(OOM, fail)
    put(writer, 1)
    assert writer.close(120)
    assert causes(folder) == ["cause 1"]
    assert writer.facts.lost == 1


def test_records_of_earlier_servers_are_known_at_the_start(
    folder: SlowFolder, start: Callable[..., FlightWriter]
) -> None:
    folder.make()
    for number in range(4):
        FlightFolder.write(folder, flight_record(number), 0)
    writer = start(limit=3)
    assert writer.close(120)
    assert (writer.facts.records, writer.facts.last_cause) == (3, "cause 3")
    assert causes(folder) == ["cause 3", "cause 2", "cause 1"]


def test_no_more_than_the_limit_is_kept(
    folder: SlowFolder, start: Callable[..., FlightWriter]
) -> None:
    folder.go.set()
    writer = start(limit=2)
    for number in range(6):
        put(writer, number)
    assert writer.close(120)
    assert causes(folder) == ["cause 5", "cause 4"]
    assert writer.facts.records == 2


def test_a_record_is_not_lost_because_old_ones_cannot_be_deleted(
    folder: SlowFolder, start: Callable[..., FlightWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another user, in a folder that servers share."""

    def refuse(_: Path, **__: bool) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    folder.go.set()
    folder.make()
    for number in range(3):
        FlightFolder.write(folder, flight_record(number), 0)
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    writer = start(limit=2)
    put(writer, 3)
    assert writer.close(120)
    assert causes(folder)[0] == "cause 3"
    assert (writer.facts.records, writer.facts.lost) == (4, 0)
    assert writer.facts.last_cause == "cause 3"


def test_a_folder_that_was_taken_away_is_made_again(
    folder: SlowFolder, start: Callable[..., FlightWriter]
) -> None:
    folder.go.set()
    writer = start()
    put(writer, 0)
    while writer.facts.records < 1:
        pass
    for path in folder.path.iterdir():
        path.unlink()
    folder.path.rmdir()
    put(writer, 1)
    assert writer.close(120)
    assert causes(folder) == ["cause 1"]


def test_a_folder_that_cannot_be_made_ends_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("not a folder")
    writer = FlightWriter(FlightFolder(tmp_path / "file" / "flight"), 32)
    writer.start()
    put(writer, 0)
    assert writer.close(120)
    assert (writer.facts.records, writer.facts.lost) == (0, 1)


def test_close_without_start_does_not_wait(folder: SlowFolder) -> None:
    assert FlightWriter(folder, 1).close(120)
