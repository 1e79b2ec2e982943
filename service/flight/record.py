"""One flight record, and its form on disk."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any

import msgspec

from service.engine.figures import Vitals
from service.flight.kinds import FlightKind
from service.flight.signals import Signals

FORMAT = 1


class MemoryLedger(msgspec.Struct, frozen=True):
    """Memory of the device in bytes. What the owners have sums to total - free."""

    total_bytes: int
    free_bytes: int
    by_owner: dict[str, int]
    reclaimable_bytes: int  # kept by the allocator and not in use: free if need be
    headroom_bytes: int  # what a step can take
    demand_bytes: int  # what the largest next step takes
    host_available_bytes: int
    age_seconds: float  # since the engine looked


class IncidentFacts(msgspec.Struct, frozen=True):
    """What the engine said of what happened to its memory."""

    rung: str | None  # of the OOM ladder
    wanted_bytes: int  # 0 where no allocation failed
    step_tokens: int
    batch_sequences: int


class EngineFacts(msgspec.Struct, frozen=True):
    """Which engine the record is about. None: it was not ready yet."""

    life: int  # 1 is the first of this server
    process_id: int | None = None
    ready_seconds: float | None = None  # how long it had been ready
    model_version: str | None = None
    device: str | None = None
    weights_dtype: str | None = None
    kv_dtype: str | None = None
    attention_backend: str | None = None
    block_tokens: int | None = None
    bytes_per_block: int | None = None


class Place(enum.StrEnum):
    """Where a request was."""

    BATCH = "batch"  # of the step that the record is about
    ENGINE = "engine"
    FRONT = "front"  # it waited for an engine


class RequestFacts(msgspec.Struct, frozen=True):
    """One request in flight. No words of it."""

    request_id: str
    tenant: str
    prompt_tokens: int
    output_tokens: int  # of all candidates
    candidates: int
    age_seconds: float
    place: Place


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written down about one event."""

    format: int = FORMAT
    kind: FlightKind
    cause: str
    time: datetime  # UTC
    server_process_id: int
    engine: EngineFacts
    incident: IncidentFacts | None = None
    crashed: bool | None = None  # of a death: by its own doing, as far as its end tells
    memory: MemoryLedger | None  # None: the engine has not looked, or is of another time
    requests_total: int  # in flight; the list is cut, those of the batch come first
    requests: list[RequestFacts]
    signals: Signals
    settings: dict[str, Any]
    versions: dict[str, str | None]  # None: not installed


class Headline(msgspec.Struct, frozen=True):
    """What a list shows of a record."""

    kind: str
    cause: str
    time: datetime
    engine: EngineFacts
    requests_total: int


def ledger_of(vitals: Vitals, now_seconds: float) -> MemoryLedger:
    """The ledger as the engine saw it last; `now_seconds` is monotonic."""
    return MemoryLedger(
        total_bytes=vitals.device_total_bytes,
        free_bytes=vitals.device_free_bytes,
        by_owner={
            "weights": vitals.weights_bytes,
            "kv_pool": vitals.kv_bytes,
            "activations": vitals.activation_bytes,
            "graphs": vitals.graph_bytes,
            "context": vitals.context_bytes,
            "others": vitals.other_bytes,
        },
        reclaimable_bytes=vitals.reclaimable_bytes,
        headroom_bytes=vitals.headroom_bytes,
        demand_bytes=vitals.demand_bytes,
        host_available_bytes=vitals.host_available_bytes,
        age_seconds=round(now_seconds - vitals.taken_seconds, 3),
    )
