"""A folder of flight records. Several servers may share one, and others may put files there."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from service.flight.kinds import surplus
from service.flight.names import RecordName, is_part, parse_name
from service.flight.record import FlightRecord, Headline

_MODE_FILE, _MODE_FOLDER = 0o600, 0o700
# A server needs moments for a record: a part that is older belongs to one that was killed.
_STALE_PART_SECONDS = 3600.0
# Far above what a record can be. What is larger is not read, whoever wrote it.
_LARGEST_BYTES = 64 * 1024**2
_NAME_TRIES = 100

_Form = TypeVar("_Form", FlightRecord, Headline)


class DamagedRecordError(Exception):
    """A file that is no record, or not a whole one."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"{path}: {cause}")
        self.path = path
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the folder: a record, a damaged one of ours, or a file of somebody else."""

    file_name: str
    name: RecordName | None  # None: not ours
    headline: Headline | None  # None: damaged, or not ours
    problem: str | None


class FlightFolder:
    """Writes records so that nobody ever sees half of one, and keeps no more than a number.

    Only files with names as we give them are ever deleted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Makes the folder, for this user alone. One that is there stays as it is."""
        self.path.mkdir(mode=_MODE_FOLDER, parents=True, exist_ok=True)

    def names(self) -> list[RecordName]:
        """The records by their names, oldest first. Raises OSError."""
        return sorted(
            name
            for file in self._files()
            if file.is_file(follow_symlinks=False) and (name := parse_name(file.name)) is not None
        )

    def write(self, record: FlightRecord, serial: int) -> RecordName:
        """Puts a record into the folder; `serial` is the least that its name may have.

        It is whole on disk when this returns. Raises OSError, and leaves nothing then.
        """
        data = msgspec.json.encode(record)
        name, descriptor = self._claim(record, serial)
        part, whole = self.path / name.part, self.path / str(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            part.rename(whole)
            self._sync_names()
        except BaseException:
            for path in (part, whole):  # nobody else can have either
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        return name

    def prune(self, limit: int) -> int:
        """Deletes records until `limit` are left; answers how many are. Raises OSError."""
        names = self.names()
        dropped = surplus([name.kind for name in names], limit)
        for index in dropped:
            # Another server that shares the folder may have been faster.
            (self.path / str(names[index])).unlink(missing_ok=True)
        return len(names) - len(dropped)

    def remove_stale_parts(self) -> None:
        """Deletes what servers left that were killed while they wrote. Raises OSError."""
        oldest_seconds = time.time() - _STALE_PART_SECONDS
        for file in self._files():
            if is_part(file.name):
                with contextlib.suppress(FileNotFoundError):
                    if file.stat(follow_symlinks=False).st_mtime < oldest_seconds:
                        Path(file.path).unlink()

    def entries(self) -> list[Entry]:
        """All files, records first and the newest of them first. Raises OSError."""
        files = [file.name for file in self._files() if not is_part(file.name)]
        ours = [(name, text) for text in files if (name := parse_name(text)) is not None]
        entries = [self._entry(name, text) for name, text in sorted(ours, reverse=True)]
        others = sorted(text for text in files if parse_name(text) is None)
        entries += [Entry(text, None, None, "not a flight record") for text in others]
        return entries

    def newest(self) -> Headline | None:
        """The newest record that can be read. Raises OSError."""
        for name in reversed(self.names()):
            with contextlib.suppress(DamagedRecordError, FileNotFoundError):
                return read_headline(self.path / str(name))
        return None

    def _sync_names(self) -> None:
        """Without it a machine that loses power may forget the new name of a record."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # the file system cannot do that with a folder
                raise
        finally:
            os.close(descriptor)

    def _files(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.path) as files:
            yield from files

    def _entry(self, name: RecordName, file_name: str) -> Entry:
        try:
            return Entry(file_name, name, read_headline(self.path / file_name), None)
        except DamagedRecordError as error:
            return Entry(file_name, name, None, error.cause)
        except OSError as error:
            return Entry(file_name, name, None, error.strerror or str(error))

    def _claim(self, record: FlightRecord, serial: int) -> tuple[RecordName, int]:
        """A name that nobody has, and its part, made and open.

        Processes of two containers can have one id. Who has made the part owns the name: then
        nobody else can, and a record of that name is there already or will never be.
        """
        for number in range(serial, serial + _NAME_TRIES):
            name = RecordName(record.time, record.server_process_id, number, record.kind.value)
            part = self.path / name.part
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(part, flags, _MODE_FILE)
            except FileExistsError:
                continue
            if not (self.path / str(name)).exists():
                return name, descriptor
            os.close(descriptor)
            part.unlink()
        raise FileExistsError(f"{_NAME_TRIES} names are taken, the last of them {name}")


def read_record(path: Path) -> FlightRecord:
    """Reads a whole record. Raises DamagedRecordError and OSError."""
    return _decode(path, FlightRecord)


def read_headline(path: Path) -> Headline:
    """Reads what a list shows. Raises DamagedRecordError and OSError."""
    return _decode(path, Headline)


def _decode(path: Path, kind: type[_Form]) -> _Form:
    try:
        return msgspec.json.decode(_read(path), type=kind)
    except msgspec.DecodeError as error:
        raise DamagedRecordError(path, f"not a whole flight record: {error}") from error


def _read(path: Path) -> bytes:
    """The content of a regular file: a pipe in the folder must not make us wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedRecordError(path, "not a file")
        if status.st_size > _LARGEST_BYTES:
            raise DamagedRecordError(path, f"{status.st_size} bytes, more than any record has")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
