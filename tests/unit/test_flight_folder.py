"""A folder of records: whole or not there, no more than a number, nothing of others deleted."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest
from flight_fakes import BEGAN, flight_record
from hypothesis import given
from hypothesis import strategies as st

from service.flight.folder import (
    DamagedRecordError,
    FlightFolder,
    read_headline,
    read_record,
)
from service.flight.kinds import FlightKind
from service.flight.names import RecordName, is_part, parse_name
from service.flight.place import NoHomeError, folder_path


@pytest.fixture
def folder(tmp_path: Path) -> FlightFolder:
    made = FlightFolder(tmp_path / "state" / "flight")
    made.make()
    return made


def files(folder: FlightFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


names = st.builds(
    RecordName,
    st.datetimes(datetime(2000, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC)),
    st.integers(1, 4_194_304),
    st.integers(0, 99_999),
    st.sampled_from([*(kind.value for kind in FlightKind), "meteorite"]),
)


@given(names, names)
def test_names_can_be_read_and_sort_by_time(one: RecordName, other: RecordName) -> None:
    assert parse_name(str(one)) == one
    assert is_part(one.part)
    assert parse_name(one.part) is None
    assert not is_part(str(one))
    if one.time != other.time:
        assert (str(one) < str(other)) == (one.time < other.time)


def test_names_are_in_utc() -> None:
    time = datetime(2026, 1, 1, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert str(RecordName(time, 1, 2, FlightKind.OOM)) == "20251231T230000.000000Z-1-0002-oom.json"


@pytest.mark.parametrize(
    "text",
    [
        "notes.txt",
        "20260231T000000.000000Z-1-0000-oom.json",
        "20260201T000000.000000Z-1-0000-oom.json.bak",
        "20260201T000000.000000Z-1-0000-../x.json",
        "20260201T000000.000000Z-1-0000-oom.json\n",
        "",
    ],
)
def test_other_names_are_not_ours(text: str) -> None:
    assert parse_name(text) is None
    assert not is_part(f".{text}.part")


def test_a_record_comes_back_as_it_was(folder: FlightFolder) -> None:
    record = flight_record()
    name = folder.write(record, 3)
    path = folder.path / str(name)
    assert name == RecordName(BEGAN, 77, 3, FlightKind.OOM)
    assert read_record(path) == record
    headline = read_headline(path)
    assert (headline.kind, headline.cause, headline.time) == ("oom", "cause 0", BEGAN)
    assert files(folder) == {str(name)}


def test_folder_and_files_are_for_their_user_alone(folder: FlightFolder) -> None:
    name = folder.write(flight_record(), 0)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.path / str(name)).stat().st_mode) == 0o600


def test_two_servers_of_one_process_id_do_not_overwrite_each_other(folder: FlightFolder) -> None:
    records = [flight_record(cause=f"server {number}") for number in range(3)]
    written = [folder.write(record, 0) for record in records]
    assert [name.serial for name in written] == [0, 1, 2]
    assert [read_record(folder.path / str(name)) for name in written] == records


def test_a_name_that_another_server_is_writing_is_left_to_it(folder: FlightFolder) -> None:
    theirs = RecordName(BEGAN, 77, 0, FlightKind.OOM)
    (folder.path / theirs.part).write_bytes(b"half")
    assert folder.write(flight_record(), 0).serial == 1
    assert (folder.path / theirs.part).read_bytes() == b"half"


def test_servers_that_write_and_prune_at_once_lose_nothing_they_keep(folder: FlightFolder) -> None:
    """Four servers with one process id, records of one moment, and a limit that they share."""
    written: list[RecordName] = []

    def serve(server: int) -> None:
        own = FlightFolder(folder.path)
        for number in range(20):
            written.append(own.write(flight_record(cause=f"{server}/{number}"), 0))
            own.prune(60)

    with ThreadPoolExecutor(4) as servers:
        list(servers.map(serve, range(4)))
    assert len(folder.names()) == 60
    assert len(written) == 80
    causes = {entry.headline.cause for entry in folder.entries() if entry.headline is not None}
    assert len(causes) == 60
    assert files(folder) == {str(name) for name in folder.names()}


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_leaves_nothing(
    folder: FlightFolder, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = "os.fsync" if call == "fsync" else "pathlib.Path.rename"
    with monkeypatch.context() as patch:
        patch.setattr(target, fail)
        with pytest.raises(OSError, match="No space"):
            folder.write(flight_record(), 0)
    assert files(folder) == set()
    assert folder.write(flight_record(), 0).serial == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_a_folder_whose_names_are_not_on_disk(
    folder: FlightFolder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """EINVAL is how a file system says that it cannot do that; anything else is a failure."""
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(f"folder with {files(folder)}" if is_folder else "record")
        if is_folder:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", fsync)
    name = RecordName(BEGAN, 77, 0, FlightKind.OOM)
    if code == errno.EINVAL:
        assert folder.write(flight_record(), 0) == name
    else:
        with pytest.raises(OSError, match="Input/output error"):
            folder.write(flight_record(), 0)
        assert files(folder) == set()
    assert synced == ["record", f"folder with { {str(name)} }"], "after the rename"


def test_pruning_keeps_the_rare_and_the_new(folder: FlightFolder) -> None:
    death = folder.write(flight_record(0, FlightKind.ENGINE_DEATH), 0)
    rungs = [folder.write(flight_record(number), 0) for number in range(1, 6)]
    assert folder.prune(3) == 3
    assert folder.names() == [death, *rungs[-2:]]
    assert folder.prune(3) == 3


def test_files_of_others_are_shown_and_never_deleted(folder: FlightFolder) -> None:
    name = folder.write(flight_record(), 0)
    (folder.path / "notes.txt").write_text("mine")
    (folder.path / "core.json").write_text("{}")
    looks_like_ours = "20260201T000000.000000Z-1-0000-oom.json"
    (folder.path / looks_like_ours).mkdir()
    assert folder.prune(0) == 0
    folder.remove_stale_parts()
    assert files(folder) == {"notes.txt", "core.json", looks_like_ours}
    assert folder.write(flight_record(), 0) == name
    shown = {entry.file_name: entry for entry in folder.entries()}
    assert next(entry.file_name for entry in folder.entries()) == str(name)
    assert shown["notes.txt"].problem == "not a flight record"
    assert shown[looks_like_ours].problem == "not a file"
    assert shown[str(name)].problem is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"kind": "oom"}', b"\xff\xfe", b"[1]", b'{"kind": 3, "cause": "x"}'],
)
def test_a_damaged_record_is_shown_as_such(folder: FlightFolder, content: bytes) -> None:
    whole = folder.write(flight_record(), 0)
    damaged = RecordName(BEGAN + timedelta(seconds=1), 77, 0, FlightKind.OOM)
    (folder.path / str(damaged)).write_bytes(content)
    first, second = folder.entries()
    assert (first.name, first.headline) == (damaged, None)
    assert first.problem is not None
    assert first.problem.startswith("not a whole flight record")
    assert second.problem is None
    with pytest.raises(DamagedRecordError):
        read_record(folder.path / str(damaged))
    newest = folder.newest()
    assert newest is not None
    assert newest.cause == "cause 0"
    assert folder.names() == [whole, damaged]


def test_a_record_cut_anywhere_is_damaged(folder: FlightFolder) -> None:
    data = msgspec.json.encode(flight_record())
    path = folder.path / str(RecordName(BEGAN, 77, 0, FlightKind.OOM))
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedRecordError):
            read_record(path)


def test_a_pipe_in_the_folder_makes_nobody_wait(folder: FlightFolder) -> None:
    os.mkfifo(folder.path / str(RecordName(BEGAN, 77, 0, FlightKind.OOM)))
    (entry,) = folder.entries()
    assert entry.problem == "not a file"
    assert folder.prune(0) == 0  # it is not ours


def test_records_of_later_versions_can_be_read(folder: FlightFolder) -> None:
    """Fields come and go; a kind that nobody knew is `other`, not damage."""
    facts = msgspec.json.decode(msgspec.json.encode(flight_record()))
    facts |= {"kind": "meteorite", "novelty": [1, 2]}
    facts["memory"]["by_owner"]["draft_model"] = 5
    path = folder.path / "20260201T000000.000000Z-1-0000-meteorite.json"
    path.write_bytes(msgspec.json.encode(facts))
    (entry,) = folder.entries()
    assert entry.headline is not None
    assert entry.headline.kind == "meteorite"
    assert read_record(path).memory is not None


def test_records_of_later_kinds_are_counted_and_read_by_their_names(folder: FlightFolder) -> None:
    facts = msgspec.json.decode(msgspec.json.encode(flight_record()))
    later = [f"20260201T00000{n}.000000Z-1-0000-meteorite.json" for n in range(3)]
    for text in later:
        (folder.path / text).write_bytes(msgspec.json.encode(facts | {"kind": "meteorite"}))
    assert [str(name) for name in folder.names()] == later
    assert {name.kind for name in folder.names()} == {FlightKind.OTHER}
    newest = folder.newest()
    assert newest is not None
    assert newest.kind == "meteorite"
    assert folder.prune(1) == 1
    assert files(folder) == {later[-1]}


@pytest.mark.parametrize("text", ["-01-0000-oom", "-1-00000-oom"])
def test_a_name_with_more_zeros_than_ours_is_not_ours(folder: FlightFolder, text: str) -> None:
    (folder.path / f"20260201T000000.000000Z{text}.json").write_bytes(b"{}")
    assert folder.names() == []
    assert folder.prune(0) == 0
    assert len(files(folder)) == 1


def test_only_parts_that_nobody_writes_any_more_are_removed(folder: FlightFolder) -> None:
    old, new = (RecordName(BEGAN, 1, serial, FlightKind.OOM) for serial in (0, 1))
    for name in (old, new):
        (folder.path / name.part).write_bytes(b"half")
    foreign = folder.path / ".something.part"
    foreign.write_bytes(b"")
    for path in (folder.path / old.part, foreign):
        os.utime(path, (0, 0))
    assert folder.entries()[0].file_name == ".something.part"
    folder.remove_stale_parts()
    assert files(folder) == {new.part, ".something.part"}


@pytest.mark.parametrize(
    ("setting", "state_home", "expected"),
    [
        (None, "/var/state", "/var/state/plimsoll/flight"),
        (None, "relative", "/home/u/.local/state/plimsoll/flight"),
        (None, "", "/home/u/.local/state/plimsoll/flight"),
        ("/records", "/var/state", "/records"),
        ("~/records", "/var/state", "/home/u/records"),
    ],
)
def test_where_records_are(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, state_home: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert folder_path(setting, {"XDG_STATE_HOME": state_home}) == Path(expected)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(NoHomeError):
        folder_path(None, {})
    assert folder_path("/records", {}) == Path("/records")


def test_what_is_larger_than_any_record_is_not_read(folder: FlightFolder) -> None:
    path = folder.path / str(RecordName(BEGAN, 77, 0, FlightKind.OOM))
    size_bytes = (64 << 20) + 1
    with path.open("wb") as file:
        file.truncate(size_bytes)  # takes no disk
    with pytest.raises(DamagedRecordError, match=f"{size_bytes} bytes, more than any record has"):
        read_headline(path)
