"""Flight records of nothing that ever happened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from kvcache.pressure import PressureLevel
from service.engine.figures import EngineStats, Vitals
from service.flight.kinds import FlightKind
from service.flight.record import EngineFacts, FlightRecord, Place, RequestFacts, ledger_of
from service.flight.signals import Sample, columns

BEGAN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def vitals(**changes: Any) -> Vitals:
    """A device of 1000 bytes, 400 of them free, 100 kept by the allocator."""
    facts = Vitals(
        taken_seconds=100.0,
        level=PressureLevel.NORMAL,
        device_total_bytes=1000,
        device_free_bytes=400,
        weights_bytes=200,
        kv_bytes=250,
        activation_bytes=120,
        graph_bytes=0,
        context_bytes=10,
        other_bytes=20,
        reclaimable_bytes=100,
        demand_bytes=80,
        host_available_bytes=5000,
    )
    return msgspec.structs.replace(facts, **changes)


def engine_stats(**changes: Any) -> EngineStats:
    """An engine with little to do."""
    names = [field for field in EngineStats.__struct_fields__ if field not in ("tiers", "vitals")]
    facts = EngineStats(**dict.fromkeys(names, 0), vitals=vitals())
    return msgspec.structs.replace(facts, **changes)


def flight_record(
    number: int = 0, kind: FlightKind = FlightKind.OOM, **changes: Any
) -> FlightRecord:
    """The record of second `number`."""
    samples = [Sample(90.0 + i, 1, 2, engine_stats(steps=i)) for i in range(11)]
    record = FlightRecord(
        kind=kind,
        cause=f"cause {number}",
        time=BEGAN + timedelta(seconds=number),
        server_process_id=77,
        engine=EngineFacts(life=1),
        memory=ledger_of(vitals(), 100.5),
        requests_total=1,
        requests=[RequestFacts("r", "t", 5, 6, 1, 2.5, Place.BATCH)],
        signals=columns(samples, 100.0),
        settings={"port": 9000},
        versions={"plimsoll": "1"},
    )
    record = msgspec.structs.replace(record, **changes)
    # Tuples become lists, as they do on disk.
    return msgspec.json.decode(msgspec.json.encode(record), type=FlightRecord)
