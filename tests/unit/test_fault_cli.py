"""The command line around faults and memory, without a server."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import grpc
import msgspec
import pytest
from api_fakes import ENGINE_STATS, FakeFront
from memory_figures import VITALS

from kvcache.pressure import FOREVER_SECONDS
from service.api.stats import stats_message
from service.cli import main
from service.cli.remote import explain
from service.cli.stats import stats_rows
from service.client import PlimsollError
from service.engine.figures import Vitals
from service.faults.plan import Fault
from service.front.faults import FaultFigures
from service.front.state import FrontStats

GOOD_PLAN = '[[faults]]\nkind = "hang_engine"\n'
FREE_PORTS = ["--port", "0", "--admin-port", "0", "--metrics-port", "0"]


# --- plimsoll serve ---


@pytest.mark.parametrize("flags", [[], ["--no-allow-faults"]])
def test_a_server_does_not_start_with_a_plan_and_without_permission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(GOOD_PLAN)
    assert main(["serve", "--fault-plan", str(plan), *flags, *FREE_PORTS]) == 2
    assert "allow_faults = false" in capsys.readouterr().err


def test_a_server_does_not_start_with_a_plan_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[faults]]\nkind = "hang_engine"\nnth_step = 0\n')
    assert main(["serve", "--allow-faults", "--fault-plan", str(plan), *FREE_PORTS]) == 2
    error = capsys.readouterr().err
    assert f"--fault-plan: fault plan {plan}" in error
    assert "$.faults[0].nth_step" in error


def test_the_help_says_what_faults_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--allow-faults" in out
    assert "never where users depend on it. (default false)" in out
    assert "--fault-plan" in out


# --- plimsoll fault ---


def test_a_file_that_is_no_plan_is_a_mistake_of_the_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fault", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("kind", get_args(Fault))
def test_the_help_knows_every_field_of_a_kind(
    kind: type[Fault], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fault", "--help"]) == 0
    told = capsys.readouterr().out.split("kinds, their fields")[1]
    (part,) = re.findall(rf"^  {kind.__struct_config__.tag} (.*\n(?:   .*\n)*)", told, re.MULTILINE)
    for field in msgspec.structs.fields(kind):
        text = told if field.name == "after_seconds" else part
        known = isinstance(field.default, int | float)
        assert (f"{field.name} ({field.default:g}" if known else field.name) in text


def test_exactly_one_of_file_and_clear(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(GOOD_PLAN)
    assert main(["fault"]) == 2
    assert main(["fault", str(plan), "--clear"]) == 2


def test_a_server_that_takes_none_is_explained() -> None:
    code = grpc.StatusCode.FAILED_PRECONDITION
    error = PlimsollError(message="no", code=code, reason="FAULTS_DISABLED")
    assert explain(error, "there:1") == (
        "the server at there:1 takes no faults; start it with --allow-faults"
    )


# --- plimsoll stats ---


def rows(vitals: Vitals | None, **changes: object) -> dict[str, str]:
    front = FakeFront()
    front.engine = msgspec.structs.replace(ENGINE_STATS, vitals=vitals)
    stats: FrontStats = dataclasses.replace(front.stats(), **changes)  # type: ignore[arg-type]
    return stats_rows(stats_message(stats, 3.0))


def test_memory_is_told_by_owner() -> None:
    million = msgspec.structs.replace(
        VITALS,
        device_total_bytes=2_000_000_000,
        device_free_bytes=300_000_000,
        weights_bytes=540_000_000,
        kv_bytes=800_000_000,
        activation_bytes=60_000_000,
        graph_bytes=0,
        context_bytes=0,
        other_bytes=300_000_000,
        reclaimable_bytes=50_000_000,
        demand_bytes=40_000_000,
    )
    assert rows(million)["memory"] == (
        "weights 540, KV pool 800, steps 60, others 300 of 2000 MB; headroom 350 MB, the largest "
        "step takes 40 MB"
    )


def test_the_governor_and_the_ladder_are_told() -> None:
    told = rows(VITALS)
    assert told["governor"] == (
        "128 of 512 tokens a step for prompts, pool of 30 of 40 blocks, admission closed, "
        "blocks for 2.5 s, memory for 8.0 s"
    )
    assert told["shortages"] == (
        "4 steps tried again, 3 pool shrinks, 2 requeues, 1 requests failed, 3 allocator retries"
    )
    calm = msgspec.structs.replace(
        VITALS,
        admits=True,
        kv_exhaustion_seconds=FOREVER_SECONDS,
        device_exhaustion_seconds=FOREVER_SECONDS,
    )
    assert rows(calm)["governor"] == (
        "128 of 512 tokens a step for prompts, pool of 30 of 40 blocks"
    )


def test_records_and_faults_are_told_where_there_are_any() -> None:
    quiet = rows(None)
    assert not quiet.keys() & {"memory", "governor", "shortages", "records", "faults"}
    told = rows(
        None,
        flight_records=2,
        last_flight_time=datetime(2026, 11, 30, tzinfo=UTC),
        last_flight_cause="no memory",
        faults=FaultFigures(ordered=1, strikes=4),
    )
    assert told["records"].startswith("2, the last of 20")
    assert told["records"].endswith(": no memory")
    assert told["faults"] == "allowed: 1 ordered, 4 carried out"
