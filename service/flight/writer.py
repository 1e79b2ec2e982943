"""Writes flight records on a thread of its own: a slow or full disk must not be felt elsewhere."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import structlog

from service.flight.folder import FlightFolder
from service.flight.kinds import FlightKind, surplus
from service.flight.record import FlightRecord

# Enough for all rungs of the ladder and a death, while the disk is slow.
_PENDING_LIMIT = 16

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FlightFacts:
    """What is known of the records of a folder."""

    records: int = 0  # in the folder, those of earlier servers included
    lost: int = 0  # since the start: could not be written, or had to make room for others
    last_time: datetime | None = None  # of the newest record, UTC
    last_cause: str | None = None
    last_oom_time: datetime | None = None  # of the newest OOM record of earlier servers, UTC


class FlightWriter:
    """Takes records from any thread without waiting; its own thread makes and writes them."""

    def __init__(
        self, folder: FlightFolder, limit: int, pending_limit: int = _PENDING_LIMIT
    ) -> None:
        """`limit`: most records in the folder. `pending_limit`: most that wait for the disk."""
        self._folder = folder
        self._limit = limit
        self._pending_limit = pending_limit
        self._pending: deque[tuple[FlightKind, Callable[[], FlightRecord]]] = deque()
        self._condition = threading.Condition()  # of what follows, and of _pending
        self._closing = False
        self._facts = FlightFacts()
        self._serial = 0
        self._failing: set[str] = set()  # complaints that were told and are not over
        self._thread = threading.Thread(target=self._run, name="flight recorder", daemon=True)

    @property
    def facts(self) -> FlightFacts:
        """What is known now."""
        with self._condition:
            return self._facts

    def start(self) -> None:
        """Begins with a look at the records of earlier servers."""
        self._thread.start()

    def put(self, kind: FlightKind, make: Callable[[], FlightRecord]) -> None:
        """Has a record made and written, soon. When too many wait, one of them is lost."""
        with self._condition:
            self._pending.append((kind, make))
            kinds = [kind for kind, _ in self._pending]
            for index in reversed(surplus(kinds, self._pending_limit)):
                del self._pending[index]
                self._facts = replace(self._facts, lost=self._facts.lost + 1)
            self._condition.notify()

    def close(self, limit_seconds: float) -> bool:
        """Waits until all is written, but no longer than that; answers whether it is.

        Nothing may be put afterwards. Idempotent.
        """
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread.ident is None:
            return True
        self._thread.join(limit_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if self._guard("flight records cannot be looked at", self._look):
            self._guard("old flight records cannot be deleted", self._prune)
        while (make := self._next()) is not None:
            if self._guard("flight record lost", partial(self._write, make)):
                self._guard("old flight records cannot be deleted", self._prune)
            else:
                with self._condition:
                    self._facts = replace(self._facts, lost=self._facts.lost + 1)

    def _next(self) -> Callable[[], FlightRecord] | None:
        with self._condition:
            self._condition.wait_for(lambda: self._pending or self._closing)
            return self._pending.popleft()[1] if self._pending else None

    def _guard(self, complaint: str, work: Callable[[], None]) -> bool:
        """Whether the work succeeded. Nothing that goes wrong here may end the thread.

        Only the first failure of a row is told, for each complaint: a full disk is one fact.
        """
        try:
            work()
        except Exception as error:  # noqa: BLE001 (logged, and counted by the caller)
            if complaint not in self._failing:
                folder = str(self._folder.path)
                expected = isinstance(error, OSError)
                _log.error(complaint, folder=folder, cause=str(error), exc_info=not expected)
            self._failing.add(complaint)
            return False
        if complaint in self._failing:
            _log.info("flight recorder recovered", complaint=complaint)
            self._failing.remove(complaint)
        return True

    def _look(self) -> None:
        self._folder.make()
        self._folder.remove_stale_parts()
        names = self._folder.names()
        records = len(names)
        ooms = [name.time for name in names if name.kind is FlightKind.OOM]
        newest = self._folder.newest()
        with self._condition:
            self._facts = replace(
                self._facts, records=records, last_oom_time=max(ooms, default=None)
            )
            if newest is not None:
                self._facts = replace(self._facts, last_time=newest.time, last_cause=newest.cause)
        if newest is None:
            return
        _log.info(
            "flight records of earlier servers",
            folder=str(self._folder.path),
            records=records,
            last_time=newest.time.isoformat(),
            last_kind=newest.kind,
            last_cause=newest.cause,
        )

    def _write(self, make: Callable[[], FlightRecord]) -> None:
        record = make()
        self._folder.make()  # somebody may have cleaned up
        name = self._folder.write(record, self._serial)
        self._serial = name.serial + 1
        with self._condition:
            self._facts = replace(
                self._facts,
                records=self._facts.records + 1,
                last_time=record.time,
                last_cause=record.cause,
            )
        _log.info("flight record", kind=record.kind.value, path=str(self._folder.path / str(name)))

    def _prune(self) -> None:
        records = self._folder.prune(self._limit)
        with self._condition:
            self._facts = replace(self._facts, records=records)
