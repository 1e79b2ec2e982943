"""What can be made to go wrong. A plan is a list of faults, as TOML or JSON.

There are two sorts. A *strike* is carried out a number of times and is over then; an engine
that is started again gets what is left of it, and counts allocations and steps anew. A *spell*
lasts for a time that every engine shares, like another process that takes memory of the same
device.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

_Seconds = Annotated[float, Meta(ge=0.0, le=86_400.0)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Share = Annotated[float, Meta(gt=0.0, le=1.0)]

MAX_FAULTS = 1000


class _Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    # Nothing happens before; from when a ready engine first got the plan.
    after_seconds: _Seconds = 0.0


class FailAllocation(_Fault, tag="fail_allocation", tag_field="kind", frozen=True):
    """Strike: an allocation fails, as an exhausted device makes it fail."""

    owner: Literal["activations", "kv_pool"] = "activations"
    nth: _Count = 1  # the first allocation of this owner that may fail
    count: _Count = 1  # how many fail
    chance: _Share = 1.0  # with which each of them fails
    seed: _Seed = 0  # of that chance, and of the place inside the step


class Balloon(_Fault, tag="balloon", tag_field="kind", frozen=True):
    """Spell: another process takes memory of the device, as it becomes free."""

    share: _Share  # of the whole device
    hold_seconds: _Seconds
    rise_seconds: _Seconds = 0.0
    fall_seconds: _Seconds = 0.0

    @property
    def end_seconds(self) -> float:
        """When it is over, from when the plan began."""
        return self.after_seconds + self.rise_seconds + self.hold_seconds + self.fall_seconds

    def share_at(self, elapsed_seconds: float) -> float:
        """Share of the device that it wants; straight up, and straight down again."""
        since_seconds = elapsed_seconds - self.after_seconds
        left_seconds = self.end_seconds - elapsed_seconds
        if since_seconds < 0 or left_seconds <= 0:
            return 0.0
        risen = since_seconds / self.rise_seconds if self.rise_seconds else 1.0
        unfallen = left_seconds / self.fall_seconds if self.fall_seconds else 1.0
        return self.share * min(1.0, risen, unfallen)


class SlowDevice(_Fault, tag="slow_device", tag_field="kind", frozen=True):
    """Spell: each step takes longer."""

    extra_seconds: Annotated[float, Meta(gt=0.0, le=600.0)]  # a step
    hold_seconds: _Seconds

    @property
    def end_seconds(self) -> float:
        """When it is over, from when the plan began."""
        return self.after_seconds + self.hold_seconds

    def extra_at(self, elapsed_seconds: float) -> float:
        """Seconds that a step takes longer."""
        lasts = self.after_seconds <= elapsed_seconds < self.end_seconds
        return self.extra_seconds if lasts else 0.0


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


Strike: TypeAlias = FailAllocation | LoseTransfer | LoseDevice | ExitEngine | HangEngine
Spell: TypeAlias = Balloon | SlowDevice
# Spelled out, since msgspec wants one flat union.
Fault: TypeAlias = (
    FailAllocation | Balloon | SlowDevice | LoseTransfer | LoseDevice | ExitEngine | HangEngine
)


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file, or a call of InjectFaults, orders."""

    faults: Annotated[list[Fault], Meta(max_length=MAX_FAULTS)]
