"""What can be made to go wrong. A plan is a list of faults, as TOML or JSON.

There are two sorts. A *strike* is carried out a number of times and is over then; an engine
that is started again gets what is left of it. A *spell* lasts for a time that every engine
shares, like another process that takes memory of the same device.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

_Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Share = Annotated[float, Meta(gt=0.0, le=1.0)]


class _Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after_seconds: _Seconds = 0.0  # from when the server got the plan, nothing happens before


class FailAllocation(_Fault, tag="fail_allocation", tag_field="kind", frozen=True):
    """Strike: an allocation fails, as an exhausted device makes it fail."""

    owner: Literal["activations", "kv_pool"] = "activations"
    nth: _Count = 1  # the first allocation of this owner that may fail
    count: _Count = 1  # how many fail
    chance: _Share = 1.0  # with which each of them fails
    seed: int = 0  # of that chance, and of the place inside the step


class Balloon(_Fault, tag="balloon", tag_field="kind", frozen=True):
    """Spell: another process takes memory of the device, as it becomes free."""

    share: _Share  # of the whole device
    rise_seconds: _Seconds = 0.0
    hold_seconds: _Seconds = 0.0
    fall_seconds: _Seconds = 0.0


class SlowDevice(_Fault, tag="slow_device", tag_field="kind", frozen=True):
    """Spell: each step takes longer."""

    extra_seconds: Annotated[float, Meta(gt=0.0, le=600.0)]  # a step
    hold_seconds: _Seconds


class LoseTransfer(_Fault, tag="lose_transfer", tag_field="kind", frozen=True):
    """Strike: a load from a cache tier never completes."""

    count: _Count = 1


class LoseDevice(_Fault, tag="lose_device", tag_field="kind", frozen=True):
    """Strike: an error of the device that does not go away in this process."""

    nth_step: _Count = 1
    count: _Count = 1


class ExitEngine(_Fault, tag="exit_engine", tag_field="kind", frozen=True):
    """Strike: the engine process ends in the middle of a step."""

    nth_step: _Count = 1
    count: _Count = 1
    signal: Annotated[int, Meta(ge=0, le=64)] = 9  # 0: it exits with `status` instead
    status: Annotated[int, Meta(ge=0, le=255)] = 1


class HangEngine(_Fault, tag="hang_engine", tag_field="kind", frozen=True):
    """Strike: the engine loop stands still for ever."""

    nth_step: _Count = 1
    count: _Count = 1


Fault: TypeAlias = (
    FailAllocation | Balloon | SlowDevice | LoseTransfer | LoseDevice | ExitEngine | HangEngine
)


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file, or a call of InjectFaults, orders."""

    faults: list[Fault]
