"""The front orders faults of each engine, until nothing is left of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_deaths import kill_engine, until_running_again
from front_fakes import eventually, running_front

from service.config import EngineSettings
from service.faults.plan import Balloon, ExitEngine, FailAllocation, FaultPlan, LoseTransfer
from service.faults.plan_file import FaultPlanError
from service.front.faults import FaultsDisabled
from service.front.front import Front
from service.front.state import FrontState

FAULTY = EngineSettings(model="scripted", allow_faults=True)
BALLOON = Balloon(share=0.5, hold_seconds=3600)


def left(front: Front) -> int:
    figures = front.stats().faults
    assert figures is not None
    return figures.ordered


async def test_a_front_without_the_setting_refuses_and_tells_the_engine_nothing(
    tmp_path: Path,
) -> None:
    async with running_front(tmp_path) as (front, record):
        for plan in (FaultPlan([BALLOON]), FaultPlan([])):
            with pytest.raises(FaultsDisabled):
                front.inject_faults(plan)
        assert front.stats().faults is None
        await until_running_again(front, kill_engine(front))
        assert record.lines("Inject") == []


async def test_every_engine_hears_of_the_faults_that_are_left(tmp_path: Path) -> None:
    async with running_front(tmp_path, engine=FAULTY) as (front, record):
        assert record.lines("Inject") == []  # nothing was ordered
        assert front.inject_faults(FaultPlan([BALLOON, LoseTransfer(count=2)])) == 0
        await eventually(lambda: len(record.lines("Inject")) == 1)
        await until_running_again(front, kill_engine(front))
        await eventually(lambda: len(record.lines("Inject")) == 2)
        first, second = record.lines("Inject")
        assert first["pid"] != second["pid"]
        assert first["faults"] == second["faults"]
        assert first["began"] == second["began"]  # a spell goes on where it was
        assert front.inject_faults(FaultPlan([])) == 2
        await eventually(lambda: len(record.lines("Inject")) == 3)
        assert record.lines("Inject")[2]["faults"] == []
        await until_running_again(front, kill_engine(front))
        assert len(record.lines("Inject")) == 3


async def test_a_strike_that_kills_engines_ends_with_its_count(tmp_path: Path) -> None:
    async with running_front(tmp_path, engine=FAULTY) as (front, record):
        front.inject_faults(FaultPlan([ExitEngine(count=3)]))
        await eventually(lambda: front.stats().engine_restarts == 3)
        await eventually(lambda: front.state is FrontState.READY)
        assert [line["faults"][0]["count"] for line in record.lines("Inject")] == [3, 2, 1]
        assert left(front) == 0
        figures = front.stats().faults
        assert figures is not None
        assert figures.strikes == 3


async def test_a_plan_file_begins_with_the_first_engine(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[[faults]]\nkind = "fail_allocation"\nnth = 7\n')
    settings = {"engine": FAULTY, "fault_plan": str(path)}
    async with running_front(tmp_path, **settings) as (front, record):
        await eventually(lambda: len(record.lines("Inject")) == 1)
        (line,) = record.lines("Inject")
        assert line["faults"][0]["nth"] == FailAllocation(nth=7).nth
        assert left(front) == 1


async def test_a_plan_file_that_is_none_keeps_the_front_from_starting(tmp_path: Path) -> None:
    settings = {"engine": FAULTY, "fault_plan": str(tmp_path / "none.toml")}
    with pytest.raises(FaultPlanError, match=r"none\.toml"):
        async with running_front(tmp_path, **settings):
            pass
