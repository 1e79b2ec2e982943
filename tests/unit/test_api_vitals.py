"""Memory, governor, ladder, flight records and faults in GetStats and WatchPressure."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import msgspec
import pytest
from api_fakes import ENGINE_STATS, FakeFront
from google.protobuf.message import Message
from memory_figures import VITALS

from kvcache.pressure import FOREVER_SECONDS
from service.api.answers import duration
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.api.stats import pressure_message, stats_message
from service.engine.figures import Vitals
from service.front.faults import FaultFigures
from service.front.state import FrontStats

Answer = pb.GetStatsResponse | pb.WatchPressureResponse


def front_stats(vitals: Vitals | None) -> FrontStats:
    front = FakeFront()
    front.engine = msgspec.structs.replace(ENGINE_STATS, vitals=vitals)
    return front.stats()


def answers(vitals: Vitals | None) -> list[Answer]:
    stats = front_stats(vitals)
    return [stats_message(stats, 3.0), pressure_message(stats)]


def is_set(message: Message) -> bool:
    """Whether each field says something, so that none is left out unnoticed."""
    return all(field.name in {f.name for f, _ in message.ListFields()} for field in fields(message))


def fields(message: Message) -> list[object]:
    return list(message.DESCRIPTOR.fields)


@pytest.mark.parametrize("answer", answers(VITALS), ids=["stats", "pressure"])
def test_the_ledger_has_every_field_and_adds_up(answer: Answer) -> None:
    memory = answer.memory
    assert is_set(memory)
    taken_bytes = (
        memory.weights_bytes
        + memory.kv_pool_bytes
        + memory.activation_bytes
        + memory.graph_bytes
        + memory.context_bytes
        + memory.other_bytes
    )
    assert taken_bytes == memory.total_bytes - memory.free_bytes == 9_000
    assert (memory.weights_bytes, memory.kv_pool_bytes, memory.activation_bytes) == (
        4_000,
        2_500,
        800,
    )
    assert (memory.graph_bytes, memory.context_bytes, memory.other_bytes) == (70, 600, 1_030)
    assert (memory.headroom_bytes, memory.reclaimable_bytes) == (1_500, 500)
    assert (memory.demand_bytes, memory.host_available_bytes) == (900, 20_000)
    assert memory.allocator_retries_total == 3


@pytest.mark.parametrize("answer", answers(VITALS), ids=["stats", "pressure"])
def test_the_governor_and_the_ladder_have_every_field(answer: Answer) -> None:
    assert answer.governor == pb.GovernorStats(
        kv_exhaustion=duration(2.5),
        device_exhaustion=duration(8.0),
        step_tokens=512,
        prefill_tokens=128,
        admits=False,
        pool_goal_blocks=30,
        pool_ceiling_blocks=40,
        narrowings_total=11,
        closings_total=12,
        shrinks_total=13,
        growths_total=14,
    )
    assert answer.oom_rungs == pb.OomRungs(
        retries_total=4, shrinks_total=3, requeues_total=2, failures_total=1
    )


@pytest.mark.parametrize("index", [0, 1], ids=["stats", "pressure"])
def test_an_exhaustion_that_is_not_in_sight_is_unset(index: int) -> None:
    vitals = msgspec.structs.replace(
        VITALS, kv_exhaustion_seconds=FOREVER_SECONDS, device_exhaustion_seconds=0.0, admits=True
    )
    governor = answers(vitals)[index].governor
    assert not governor.HasField("kv_exhaustion")
    assert governor.HasField("device_exhaustion")  # it is now
    assert governor.admits


@pytest.mark.parametrize("answer", answers(None), ids=["stats", "pressure"])
def test_an_engine_that_has_not_looked_tells_nothing(answer: Answer) -> None:
    for name in ("memory", "governor", "oom_rungs"):
        assert not answer.HasField(name)  # type: ignore[arg-type]


def test_flight_records_are_told() -> None:
    stats = dataclasses.replace(
        front_stats(None),
        flight_records=3,
        lost_flight_records=1,
        last_flight_time=datetime(2026, 11, 30, 12, 0, 5, tzinfo=UTC),
        last_flight_cause="no memory",
    )
    flight = stats_message(stats, 3.0).flight
    assert is_set(flight)
    assert (flight.records, flight.lost_records_total, flight.last_cause) == (3, 1, "no memory")
    assert flight.last_time.ToJsonString() == "2026-11-30T12:00:05Z"
    assert not stats_message(front_stats(None), 3.0).flight.HasField("last_time")


def test_faults_are_told_where_they_are_allowed() -> None:
    stats = front_stats(None)
    assert not stats_message(stats, 3.0).HasField("faults")
    allowed = dataclasses.replace(stats, faults=FaultFigures(ordered=0, strikes=0))
    assert stats_message(allowed, 3.0).HasField("faults")
    struck = dataclasses.replace(stats, faults=FaultFigures(ordered=2, strikes=5))
    assert stats_message(struck, 3.0).faults == pb.FaultStats(ordered=2, strikes_total=5)
