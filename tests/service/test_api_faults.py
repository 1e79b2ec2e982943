"""InjectFaults: messages become a plan, all of it or nothing, and only where it is allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, get_args

import grpc
import msgspec
import pytest
from api_fakes import ApiServer, FakeFront, api_server, refused
from google.protobuf.duration_pb2 import Duration
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.api.faults import check_faults_request, faults_request
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.api.gen.plimsoll.v1 import faults_pb2 as fp
from service.client import PlimsollClient, PlimsollError
from service.faults.plan import (
    Balloon,
    ExitEngine,
    FailAllocation,
    Fault,
    FaultPlan,
    HangEngine,
    LoseDevice,
    LoseTransfer,
    SlowDevice,
)
from service.front.faults import FaultBook

Request = pb.InjectFaultsRequest


def seconds(value: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(value * 1e9))
    return message


def balloon(**fields: Any) -> fp.Fault:
    return fp.Fault(balloon=fp.Balloon(hold=seconds(1), **fields))


class FaultyFront(FakeFront):
    """Keeps the plans that it is given, as the front does."""

    def __init__(self, *, allowed: bool) -> None:
        super().__init__()
        self.book = FaultBook(allowed=allowed)
        self.plans: list[FaultPlan] = []

    def inject_faults(self, plan: FaultPlan) -> int:
        replaced = self.book.replace(plan, 0.0)
        self.plans.append(plan)
        return replaced


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server(FaultyFront(allowed=True)) as running:
        yield running


def plans_of(server: ApiServer) -> list[FaultPlan]:
    assert isinstance(server.front, FaultyFront)
    return server.front.plans


# --- messages and plans ---


def test_messages_and_plans_have_the_same_kinds_and_fields() -> None:
    kinds = {str(kind.__struct_config__.tag): kind for kind in get_args(Fault)}
    oneof = fp.Fault.DESCRIPTOR.oneofs_by_name["kind"]
    assert {field.name for field in oneof.fields} == set(kinds)
    for field in oneof.fields:
        assert field.message_type is not None
        in_message = {
            f"{inner.name}_seconds" if inner.message_type is not None else inner.name
            for inner in field.message_type.fields
        }
        in_plan = {info.name for info in msgspec.structs.fields(kinds[field.name])}
        assert in_plan == in_message | {"after_seconds"}


def test_what_is_not_set_is_as_in_a_file() -> None:
    plan = check_faults_request(
        Request(
            faults=[
                fp.Fault(fail_allocation=fp.FailAllocation()),
                fp.Fault(balloon=fp.Balloon(share=0.5, hold=seconds(1))),
                fp.Fault(slow_device=fp.SlowDevice(extra=seconds(0.5), hold=seconds(0))),
                fp.Fault(lose_transfer=fp.LoseTransfer()),
                fp.Fault(lose_device=fp.LoseDevice()),
                fp.Fault(exit_engine=fp.ExitEngine()),
                fp.Fault(hang_engine=fp.HangEngine()),
            ]
        )
    )
    assert plan.faults == [
        FailAllocation(),
        Balloon(share=0.5, hold_seconds=1.0),
        SlowDevice(extra_seconds=0.5, hold_seconds=0),
        LoseTransfer(),
        LoseDevice(),
        ExitEngine(),
        HangEngine(),
    ]


COUNTS = st.integers(1, 1_000_000)
TIMES = st.integers(0, 86_400 * 64).map(lambda ticks: ticks / 64)  # exact in both forms
SHARES = st.floats(0.0, 1.0, exclude_min=True)
FAULTS = st.one_of(
    st.builds(
        FailAllocation,
        after_seconds=TIMES,
        owner=st.sampled_from(["activations", "kv_pool"]),
        nth=COUNTS,
        count=COUNTS,
        chance=SHARES,
        seed=st.integers(0, 2**63 - 1),
    ),
    st.builds(
        Balloon,
        after_seconds=TIMES,
        share=SHARES,
        rise_seconds=TIMES,
        hold_seconds=TIMES,
        fall_seconds=TIMES,
    ),
    st.builds(
        SlowDevice,
        after_seconds=TIMES,
        extra_seconds=st.integers(1, 600 * 64).map(lambda ticks: ticks / 64),
        hold_seconds=TIMES,
    ),
    st.builds(LoseTransfer, after_seconds=TIMES, count=COUNTS),
    st.builds(LoseDevice, after_seconds=TIMES, nth_step=COUNTS, count=COUNTS),
    st.builds(
        ExitEngine,
        after_seconds=TIMES,
        nth_step=COUNTS,
        count=COUNTS,
        signal=st.integers(0, 64),
        status=st.integers(0, 255),
    ),
    st.builds(HangEngine, after_seconds=TIMES, nth_step=COUNTS, count=COUNTS),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(FAULTS, max_size=5).map(FaultPlan))
def test_a_plan_survives_the_way_through_messages(plan: FaultPlan) -> None:
    wire = faults_request(plan).SerializeToString()
    assert check_faults_request(Request.FromString(wire)) == plan


# --- calls ---


async def test_a_plan_replaces_the_one_before(server: ApiServer) -> None:
    plan = FaultPlan([HangEngine(), LoseTransfer(count=2)])
    answer = await server.admin.InjectFaults(faults_request(plan))
    assert answer.replaced_faults == 0
    answer = await server.admin.InjectFaults(Request())
    assert answer.replaced_faults == 2
    assert plans_of(server) == [plan, FaultPlan([])]


@pytest.mark.parametrize(
    ("fault", "path"),
    [
        (fp.Fault(), "kind"),
        (fp.Fault(after=seconds(-1), hang_engine=fp.HangEngine()), "after"),
        (fp.Fault(after=seconds(86_401), hang_engine=fp.HangEngine()), "after"),
        (fp.Fault(hang_engine=fp.HangEngine(nth_step=0)), "hang_engine.nth_step"),
        (fp.Fault(hang_engine=fp.HangEngine(count=1_000_001)), "hang_engine.count"),
        (fp.Fault(exit_engine=fp.ExitEngine(signal=65)), "exit_engine.signal"),
        (fp.Fault(exit_engine=fp.ExitEngine(status=256)), "exit_engine.status"),
        (balloon(), "balloon.share"),
        (balloon(share=0.0), "balloon.share"),
        (balloon(share=1.01), "balloon.share"),
        (balloon(share=float("nan")), "balloon.share"),
        (balloon(share=0.5, fall=seconds(-1)), "balloon.fall"),
        (fp.Fault(balloon=fp.Balloon(share=0.5)), "balloon.hold"),
        (fp.Fault(slow_device=fp.SlowDevice(hold=seconds(1))), "slow_device.extra"),
        (fp.Fault(slow_device=fp.SlowDevice(extra=seconds(1))), "slow_device.hold"),
        (
            fp.Fault(slow_device=fp.SlowDevice(extra=seconds(601), hold=seconds(1))),
            "slow_device.extra",
        ),
        (fp.Fault(fail_allocation=fp.FailAllocation(nth=0)), "fail_allocation.nth"),
        (fp.Fault(fail_allocation=fp.FailAllocation(chance=0.0)), "fail_allocation.chance"),
        (fp.Fault(fail_allocation=fp.FailAllocation(seed=2**63)), "fail_allocation.seed"),
        (
            fp.Fault(fail_allocation=fp.FailAllocation(owner=7)),  # type: ignore[arg-type]
            "fail_allocation.owner",
        ),
    ],
)
async def test_limits(server: ApiServer, fault: fp.Fault, path: str) -> None:
    good = fp.Fault(lose_transfer=fp.LoseTransfer())
    refusal = await refused(server.admin.InjectFaults(Request(faults=[good, fault])))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refusal.fields) == [f"faults[1].{path}"]
    assert plans_of(server) == []


async def test_every_bad_field_is_named(server: ApiServer) -> None:
    bad = fp.Fault(after=seconds(-1), fail_allocation=fp.FailAllocation(nth=0, count=0, chance=2.0))
    refusal = await refused(server.admin.InjectFaults(Request(faults=[bad, fp.Fault()])))
    assert list(refusal.fields) == [
        "faults[0].after",
        "faults[0].fail_allocation.nth",
        "faults[0].fail_allocation.count",
        "faults[0].fail_allocation.chance",
        "faults[1].kind",
    ]
    assert "must be" in refusal.fields["faults[0].after"]
    assert "-1.0" in refusal.fields["faults[0].after"]


async def test_a_plan_has_a_bounded_number_of_faults(server: ApiServer) -> None:
    fault = fp.Fault(lose_transfer=fp.LoseTransfer())
    refusal = await refused(server.admin.InjectFaults(Request(faults=[fault] * 1001)))
    assert list(refusal.fields) == ["faults.length"]
    assert plans_of(server) == []


# --- a server that allows none ---


@pytest.mark.parametrize("plan", [FaultPlan([HangEngine()]), FaultPlan([])])
async def test_a_server_without_the_setting_takes_none(plan: FaultPlan) -> None:
    async with api_server(FaultyFront(allowed=False)) as server:
        refusal = await refused(server.admin.InjectFaults(faults_request(plan)))
        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
        assert refusal.reason == "FAULTS_DISABLED"
        assert server.front.orders == []
        assert "allow_faults" in refusal.message
        assert not (await server.admin.GetStats(pb.GetStatsRequest())).HasField("faults")


async def test_no_client_can_order_faults_on_the_public_port(server: ApiServer) -> None:
    for service in ("EngineAdminService", "InferenceService"):
        call = server.channel.unary_unary(f"/plimsoll.v1.{service}/InjectFaults")
        assert (await refused(call(b""))).code is grpc.StatusCode.UNIMPLEMENTED
    assert plans_of(server) == []


# --- the client ---


async def test_the_client_orders_faults_and_watches_the_pressure(server: ApiServer) -> None:
    async with PlimsollClient(admin_target=server.ports.admin_address) as client:
        answer = await client.inject_faults(faults_request(FaultPlan([HangEngine()])))
        assert answer.replaced_faults == 0
        watch = client.watch_pressure(heartbeat_seconds=0.1)
        levels = [(await anext(watch)).level for _ in range(3)]
        assert levels == [pb.PRESSURE_LEVEL_NORMAL] * 3
        await watch.aclose()
        with pytest.raises(PlimsollError) as caught:
            await anext(client.watch_pressure(heartbeat_seconds=0.01))
        assert caught.value.reason == "INVALID_FIELD"
    assert plans_of(server) == [FaultPlan([HangEngine()])]
