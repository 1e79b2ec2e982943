"""Fault plans: files, limits, and what a spell does when."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.config import EngineSettings, ServeSettings
from service.config.sources import load_settings
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
    Spell,
    Strike,
)
from service.faults.plan_file import FaultPlanError, read_plan

PLAN = FaultPlan(
    [
        FailAllocation(owner="kv_pool", nth=3, count=2, chance=0.5, seed=9, after_seconds=1.5),
        Balloon(share=0.6, rise_seconds=10, hold_seconds=20, fall_seconds=5),
        SlowDevice(extra_seconds=0.5, hold_seconds=3),
        LoseTransfer(),
        LoseDevice(nth_step=4),
        ExitEngine(signal=0, status=7),
        HangEngine(count=2),
    ]
)
TOML = """\
[[faults]]
kind = "fail_allocation"
owner = "kv_pool"
nth = 3
count = 2
chance = 0.5
seed = 9
after_seconds = 1.5

[[faults]]
kind = "balloon"
share = 0.6
rise_seconds = 10
hold_seconds = 20
fall_seconds = 5

[[faults]]
kind = "slow_device"
extra_seconds = 0.5
hold_seconds = 3

[[faults]]
kind = "lose_transfer"

[[faults]]
kind = "lose_device"
nth_step = 4

[[faults]]
kind = "exit_engine"
signal = 0
status = 7

[[faults]]
kind = "hang_engine"
count = 2
"""


def test_every_fault_is_a_strike_or_a_spell() -> None:
    assert set(get_args(Fault)) == set(get_args(Strike)) | set(get_args(Spell))
    assert not set(get_args(Strike)) & set(get_args(Spell))
    assert {type(fault) for fault in PLAN.faults} == set(get_args(Fault))


# --- files ---


def test_a_plan_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(TOML)
    assert read_plan(path) == PLAN


def test_a_plan_as_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(PLAN))
    assert read_plan(path) == PLAN


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "required field `faults`"),
        ("faults = 3", "Expected `array`"),
        ('[[faults]]\nkind = "balloon"', "required field `share`"),
        ('[[faults]]\nkind = "balloon"\nshare = 0.5', "required field `hold_seconds`"),
        (
            '[[faults]]\nkind = "balloon"\nshare = 1.5\nhold_seconds = 1',
            "<= 1.0 - at `$.faults[0].share`",
        ),
        ('[[faults]]\nkind = "balloon"\nshare = nan\nhold_seconds = 1', "at `$.faults[0].share`"),
        ('[[faults]]\nkind = "ballon"\nshare = 0.5', "Invalid value 'ballon'"),
        ("[[faults]]\nshare = 0.5", "`kind`"),
        ('[[faults]]\nkind = "hang_engine"\nnth = 3', "unknown field `nth`"),
        ('[[faults]]\nkind = "hang_engine"\nnth_step = 0', ">= 1"),
        ('[[faults]]\nkind = "exit_engine"\nsignal = 65', "<= 64"),
        ("[[faults]", "line 1"),
        ("faults = [" + '{kind = "lose_transfer"},' * 1001 + "]", "length <= 1000"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(FaultPlanError) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)
    assert cause in caught.value.cause


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FaultPlanError, match="No such file"):
        read_plan(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FaultPlanError):
        read_plan(tmp_path / "bytes.toml")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(FaultPlanError):
        read_plan(tmp_path / "bytes.json")


# --- settings ---


def test_faults_are_off_unless_somebody_says_so() -> None:
    assert EngineSettings().allow_faults is False
    assert ServeSettings().engine.allow_faults is False
    assert ServeSettings().fault_plan is None
    assert load_settings().engine.allow_faults is False


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ({"fault_plan": "plan.toml"}, {}),
        ({}, {"PLIMSOLL_FAULT_PLAN": "plan.toml"}),
        ({"fault_plan": "plan.toml", "allow_faults": False}, {"PLIMSOLL_ALLOW_FAULTS": "1"}),
    ],
)
def test_a_plan_alone_does_not_switch_faults_on(
    flags: dict[str, object], environment: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"fault_plan = 'plan\.toml' .* allow_faults = false"):
        load_settings(flags, environment=environment)


def test_a_plan_in_a_settings_file_does_not_either(tmp_path: Path) -> None:
    path = tmp_path / "plimsoll.toml"
    path.write_text('fault_plan = "plan.toml"\n')
    with pytest.raises(ValueError, match="allow_faults = false"):
        load_settings(config_file=path)
    path.write_text('fault_plan = "plan.toml"\n[engine]\nallow_faults = true\n')
    settings = load_settings(config_file=path)
    assert (settings.fault_plan, settings.engine.allow_faults) == ("plan.toml", True)


# --- spells ---


def test_a_balloon_rises_stays_and_falls() -> None:
    balloon = Balloon(share=0.6, after_seconds=1, rise_seconds=2, hold_seconds=3, fall_seconds=4)
    shares = {0.9: 0.0, 1.0: 0.0, 2.0: 0.3, 3.0: 0.6, 6.0: 0.6, 8.0: 0.3, 9.99: 0.0015, 10.0: 0.0}
    for elapsed_seconds, share in shares.items():
        assert balloon.share_at(elapsed_seconds) == pytest.approx(share)
    assert balloon.end_seconds == 10.0


def test_a_balloon_may_be_there_and_gone_at_once() -> None:
    balloon = Balloon(share=0.5, hold_seconds=2)
    assert [balloon.share_at(t) for t in (0.0, 1.99, 2.0)] == [0.5, 0.5, 0.0]


@given(
    st.builds(
        Balloon,
        share=st.floats(0.01, 1.0),
        after_seconds=st.floats(0, 100),
        rise_seconds=st.floats(0, 100),
        hold_seconds=st.floats(0, 100),
        fall_seconds=st.floats(0, 100),
    ),
    st.floats(0, 500),
)
def test_a_balloon_never_wants_more_than_its_share(balloon: Balloon, elapsed: float) -> None:
    assert 0.0 <= balloon.share_at(elapsed) <= balloon.share
    if elapsed < balloon.after_seconds or elapsed >= balloon.end_seconds:
        assert balloon.share_at(elapsed) == 0.0


def test_a_slow_device_is_slow_for_a_while() -> None:
    slow = SlowDevice(extra_seconds=0.25, hold_seconds=2, after_seconds=1)
    assert [slow.extra_at(t) for t in (0.99, 1.0, 2.99, 3.0)] == [0.0, 0.25, 0.25, 0.0]
