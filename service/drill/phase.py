"""The course of a drill: what is made to go wrong, when, and for how long. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from service.drill.sample import Ledger
from service.faults.plan import Balloon, ExitEngine, FailAllocation, Fault, HangEngine

_MIB = 1024 * 1024


class Stage(enum.Enum):
    """The phases, in order."""

    BASELINE = "baseline"
    CLIMB = "memory climbs"
    FAILURES = "allocations fail"
    RELEASE = "memory returns"
    EXIT = "engine dies"
    FREEZE = "engine freezes"
    CALM = "calm"


class Until(enum.Enum):
    """When a phase ends."""

    TIME = "its time is over"
    POOL_REGROWN = "the KV pool has the size it had before"
    STREAMS_GO_ON = "an engine was replaced and every stream got a token since"


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of the drill."""

    stage: Stage
    least_seconds: float
    most_seconds: float
    until: Until = Until.TIME
    # What the server is ordered at the beginning, instead of all before; None: nothing new.
    faults: tuple[Fault, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the phases take."""

    baseline_seconds: float = 10.0
    rise_seconds: float = 10.0  # of the balloon
    failures_seconds: float = 10.0
    fall_seconds: float = 4.0
    calm_seconds: float = 8.0
    regrow_limit_seconds: float = 60.0
    recovery_limit_seconds: float = 60.0  # after an engine is lost


QUICK = Pace(
    baseline_seconds=4.0,
    rise_seconds=5.0,
    failures_seconds=6.0,
    fall_seconds=2.0,
    calm_seconds=3.0,
)

# Allocations that fail in a row: three retries, two shrinks of the pool, and one requeue. One
# more would end a request, which is what the ladder does last.
BURST_FAILURES = 6
SCATTERED_FAILURES = 8
_SCATTERED_CHANCE = 0.25
_SEED = 5


@dataclass(frozen=True, slots=True)
class Squeeze:
    """How much memory the balloon takes."""

    balloon_bytes: int
    share: float  # of the device


class NothingToTakeError(Exception):
    """The device is so nearly full of other things that a balloon would prove nothing."""


def squeeze(ledger: Ledger, pool_share: float) -> Squeeze:
    """A balloon that takes all that is free now, and this share of the KV pool.

    Raises:
        NothingToTakeError: that is nothing.
    """
    balloon_bytes = ledger.free_bytes + int(pool_share * ledger.kv_bytes)
    if balloon_bytes < _MIB or ledger.total_bytes <= 0:
        raise NothingToTakeError(
            f"{balloon_bytes} bytes could be taken of {ledger.total_bytes}; at least {_MIB} needed"
        )
    return Squeeze(balloon_bytes, balloon_bytes / ledger.total_bytes)


def phases(pace: Pace, balloon: Squeeze) -> Sequence[Phase]:
    """All phases of a drill.

    The balloon and the failures are one order, since another order would end the balloon:
    it rises during CLIMB, stays during FAILURES, and falls in RELEASE.
    """
    memory = (
        Balloon(
            share=balloon.share,
            rise_seconds=pace.rise_seconds,
            hold_seconds=pace.failures_seconds,
            fall_seconds=pace.fall_seconds,
        ),
        FailAllocation(after_seconds=pace.rise_seconds, count=BURST_FAILURES, seed=_SEED),
        FailAllocation(
            after_seconds=pace.rise_seconds + pace.failures_seconds / 3,
            count=SCATTERED_FAILURES,
            chance=_SCATTERED_CHANCE,
            seed=_SEED + 1,
        ),
    )
    return (
        _timed(Stage.BASELINE, pace.baseline_seconds),
        _timed(Stage.CLIMB, pace.rise_seconds, memory),
        _timed(Stage.FAILURES, pace.failures_seconds),
        Phase(
            Stage.RELEASE,
            pace.fall_seconds,
            pace.fall_seconds + pace.regrow_limit_seconds,
            Until.POOL_REGROWN,
        ),
        _loss(Stage.EXIT, pace, ExitEngine()),
        _loss(Stage.FREEZE, pace, HangEngine()),
        _timed(Stage.CALM, pace.calm_seconds, ()),
    )


def _timed(stage: Stage, seconds: float, faults: tuple[Fault, ...] | None = None) -> Phase:
    return Phase(stage, seconds, seconds, faults=faults)


def _loss(stage: Stage, pace: Pace, fault: Fault) -> Phase:
    return Phase(stage, 0.0, pace.recovery_limit_seconds, Until.STREAMS_GO_ON, (fault,))


LOSSES = (Stage.EXIT, Stage.FREEZE)
