"""Writes down what went wrong, with what the front knows at that moment."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain, islice

import msgspec
import structlog

from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.config import ServeSettings
from service.engine.figures import EngineStats, Incident, Vitals
from service.engine.messages import Ready
from service.flight.folder import FlightFolder
from service.flight.kinds import FlightKind, kind_of
from service.flight.place import NoHomeError, folder_path
from service.flight.record import (
    EngineFacts,
    FlightRecord,
    IncidentFacts,
    Place,
    RequestFacts,
    ledger_of,
)
from service.flight.signals import KEPT_SECONDS, Sample, SignalRing, columns
from service.flight.surroundings import versions, without_secrets
from service.flight.writer import FlightFacts, FlightWriter
from service.front.engine_death import EngineDeath
from service.front.request import LiveRequest

# A record of CRITICAL has the minute before it: one a minute leaves no gap.
_CRITICAL_PAUSE_SECONDS = KEPT_SECONDS
# Of one record. Those of the batch come first, then those in the engine.
_REQUESTS_LIMIT = 512
# At the end of the server, for a disk that is slow.
_CLOSE_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class FlightRecorder:
    """Belongs to the event loop; never waits for the disk and never raises."""

    def __init__(
        self,
        settings: ServeSettings,
        requests: Collection[LiveRequest],
        in_engine: Mapping[int, LiveRequest],
    ) -> None:
        """`requests` are not over, `in_engine` are by sequence; read when something happens."""
        self._settings = settings
        self._requests = requests
        self._in_engine = in_engine
        self._ring = SignalRing()
        self._latest: EngineStats | None = None
        self._engine = EngineFacts(life=1)
        self._ready_seconds: float | None = None
        self._last_oom_time: datetime | None = None  # of this server
        self._told_of_unready = False  # the last engine, which never became ready
        self._critical = False
        self._next_critical_seconds = float("-inf")
        self._writer = _writer(settings)

    @property
    def facts(self) -> FlightFacts:
        """What is known of the records."""
        return FlightFacts() if self._writer is None else self._writer.facts

    @property
    def last_oom_time(self) -> datetime | None:
        """Of the last rung of the OOM ladder, UTC, those of earlier servers included."""
        return self._last_oom_time or self.facts.last_oom_time

    def start(self) -> None:
        """Begins with the records of earlier servers."""
        if self._writer is not None:
            self._writer.start()

    async def close(self) -> None:
        """Waits until all records are written, if the disk takes them. Idempotent."""
        if self._writer is None:
            return
        if not await asyncio.to_thread(self._writer.close, _CLOSE_SECONDS):
            _log.error("flight records not written in time", limit_seconds=_CLOSE_SECONDS)

    # --- what happens ---

    def engine_ready(self, ready: Ready, process_id: int | None) -> None:
        """An engine takes requests."""
        self._ready_seconds = time.monotonic()
        self._engine = EngineFacts(
            life=self._engine.life,
            process_id=process_id,
            model_version=ready.model_version,
            device=ready.device,
            weights_dtype=ready.weights_dtype,
            kv_dtype=ready.kv_dtype,
            attention_backend=ready.attention_backend,
            block_tokens=ready.block_tokens,
            bytes_per_block=ready.bytes_per_block,
        )

    def engine_restarting(self) -> None:
        """Another engine will be started."""
        self._ready_seconds = None
        self._critical = False
        self._engine = EngineFacts(life=self._engine.life + 1)
        self._latest = None

    def reported(self, stats: EngineStats) -> None:
        """The engine told its numbers."""
        self._latest = stats
        now_seconds = time.monotonic()
        self._ring.add(Sample(now_seconds, self._engine.life, len(self._requests), stats))
        vitals = stats.vitals
        critical = vitals is not None and vitals.level is PressureLevel.CRITICAL
        if vitals is not None and critical and not self._critical:
            self._put(FlightKind.CRITICAL, _critical_cause(vitals))
        self._critical = critical

    def incident(self, incident: Incident) -> None:
        """The engine told what happened to it, and may not outlive it."""
        rung = None if incident.rung is None else incident.rung.name.lower()
        if kind_of(incident.kind) is FlightKind.OOM:
            self._last_oom_time = datetime.now(UTC)
        facts = IncidentFacts(
            rung, incident.wanted_bytes, incident.step_tokens, len(incident.sequence_ids)
        )
        _log.warning(
            "incident", kind=incident.kind, cause=incident.cause, **msgspec.structs.asdict(facts)
        )
        batch = dict.fromkeys(
            request
            for sequence_id in incident.sequence_ids
            if (request := self._in_engine.get(sequence_id)) is not None
        )
        self._put(
            kind_of(incident.kind),
            incident.cause,
            incident=facts,
            batch=batch,
            vitals=incident.vitals,
        )

    def engine_died(self, death: EngineDeath) -> None:
        """The engine is gone; to be told before its requests are taken from it.

        Of engines in a row that never became ready the first is worth a record: many of them
        would push out that of the death that began it.
        """
        is_unready = self._ready_seconds is None
        if is_unready and self._told_of_unready:
            return
        self._told_of_unready = is_unready
        self._put(FlightKind.ENGINE_DEATH, death.cause, crashed=death.crashed)

    def convicted(self, request: LiveRequest, deaths: int) -> None:
        """A request was found to kill engines."""
        self._put(
            FlightKind.CONVICTION, f"a request killed {deaths} engines", batch={request: None}
        )

    def gave_up(self, cause: str) -> None:
        """No other engine will be started; to be told before the requests are failed."""
        self._put(FlightKind.GIVEN_UP, cause)

    # --- inside ---

    def _put(
        self,
        kind: FlightKind,
        cause: str,
        *,
        incident: IncidentFacts | None = None,
        crashed: bool | None = None,
        batch: Mapping[LiveRequest, None] | None = None,
        vitals: Vitals | None = None,
    ) -> None:
        if self._writer is None:
            return
        time_now, now_seconds = datetime.now(UTC), time.monotonic()
        if kind is FlightKind.CRITICAL:
            if now_seconds < self._next_critical_seconds:
                return
            self._next_critical_seconds = now_seconds + _CRITICAL_PAUSE_SECONDS
        if vitals is None and self._latest is not None:
            vitals = self._latest.vitals
        memory = None if vitals is None else ledger_of(vitals, now_seconds)
        engine = self._engine
        if self._ready_seconds is not None:
            lived_seconds = round(now_seconds - self._ready_seconds, 3)
            engine = msgspec.structs.replace(engine, ready_seconds=lived_seconds)
        samples = self._ring.since(now_seconds - KEPT_SECONDS)
        requests = self._facts_of_requests(batch or {}, now_seconds)
        requests_total = len(self._requests)

        def make() -> FlightRecord:
            return FlightRecord(
                kind=kind,
                cause=cause,
                time=time_now,
                server_process_id=os.getpid(),
                engine=engine,
                incident=incident,
                crashed=crashed,
                memory=memory,
                requests_total=requests_total,
                requests=requests,
                signals=columns(samples, now_seconds),
                settings=without_secrets(self._settings),
                versions=versions(),
            )

        self._writer.put(kind, make)

    def _facts_of_requests(
        self, batch: Mapping[LiveRequest, None], now_seconds: float
    ) -> list[RequestFacts]:
        in_engine = dict.fromkeys(self._in_engine.values())
        order: Iterable[tuple[LiveRequest, Place]] = chain(
            ((request, Place.BATCH) for request in batch),
            ((request, Place.ENGINE) for request in in_engine if request not in batch),
            (
                (request, Place.FRONT)
                for request in self._requests
                if request not in batch and request not in in_engine
            ),
        )
        return [
            RequestFacts(
                request_id=request.call.request_id,
                tenant=request.call.tenant,
                prompt_tokens=request.account.prompt_tokens,
                output_tokens=request.output_tokens,
                candidates=len(request.candidates),
                age_seconds=round(now_seconds - request.account.arrival_seconds, 3),
                place=place,
            )
            for request, place in islice(order, _REQUESTS_LIMIT)
        ]


def _writer(settings: ServeSettings) -> FlightWriter | None:
    """None: nothing is recorded."""
    if settings.flight_records == 0:
        return None
    try:
        path = folder_path(settings.flight_folder, os.environ)
    except NoHomeError as error:
        _log.warning("no flight records: flight_folder is not set", cause=str(error))
        return None
    return FlightWriter(FlightFolder(path), settings.flight_records)


def _critical_cause(vitals: Vitals) -> str:
    """All that can have led there: the engine does not tell which it was."""
    return (
        f"pressure is CRITICAL: {vitals.headroom_bytes} bytes of headroom for steps of "
        f"{vitals.demand_bytes} bytes; forecast end of it: "
        f"{_when(vitals.device_exhaustion_seconds)}, of free KV blocks: "
        f"{_when(vitals.kv_exhaustion_seconds)}; rungs of the OOM ladder so far: "
        f"{sum(vitals.rungs)}"
    )


def _when(seconds: float) -> str:
    return "not in sight" if seconds >= FOREVER_SECONDS else f"in {seconds:.1f} s"
