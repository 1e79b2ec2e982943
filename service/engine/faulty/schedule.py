"""Which fault happens now. Pure: the caller says what it is about to do, and tells the time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from service.engine.messages import OrderedFault
from service.faults.plan import (
    Balloon,
    ExitEngine,
    FailAllocation,
    HangEngine,
    LoseDevice,
    LoseTransfer,
    SlowDevice,
    Strike,
)

StepFault: TypeAlias = FailAllocation | LoseDevice | ExitEngine | HangEngine


@dataclass(frozen=True, slots=True)
class StepStrike:
    """A strike in the step that comes now."""

    fault_id: int
    fault: StepFault
    place: float  # in [0, 1), drawn from the whole length of the step


@dataclass(slots=True)
class _Pending:
    """A strike that is not over, and how many occasions for it there were."""

    fault_id: int
    fault: Strike
    begins_seconds: float
    left: int
    occasions: int = 0
    draws: random.Random = field(default_factory=random.Random)

    @classmethod
    def of(cls, ordered: OrderedFault, fault: Strike) -> _Pending:
        # With the count, so that the next engine meets it in other places than the last one.
        seed = fault.seed if isinstance(fault, FailAllocation) else ordered.fault_id
        return cls(
            ordered.fault_id,
            fault,
            ordered.began_seconds + fault.after_seconds,
            left=fault.count,
            draws=random.Random(f"{seed} {fault.count}"),
        )

    def meets(self, now_seconds: float) -> bool:
        """Whether this occasion is one to strike at."""
        if self.left == 0 or now_seconds < self.begins_seconds:
            return False
        self.occasions += 1
        match self.fault:
            case FailAllocation(nth=first, chance=chance):
                return self.occasions >= first and self.draws.random() < chance
            case LoseTransfer():
                return True
            case _:
                return self.occasions >= self.fault.nth_step


class FaultSchedule:
    """The faults that one engine was told of."""

    def __init__(self) -> None:
        self._steps: list[_Pending] = []
        self._growths: list[_Pending] = []
        self._loads: list[_Pending] = []
        self._balloons: list[tuple[float, Balloon]] = []  # with the time at which the plan began
        self._slow: list[tuple[float, SlowDevice]] = []

    def replace(self, faults: Iterable[OrderedFault]) -> None:
        """Forgets all faults but these."""
        for forgotten in (self._steps, self._growths, self._loads, self._balloons, self._slow):
            forgotten.clear()
        for ordered in faults:
            match ordered.fault:
                case Balloon() as fault:
                    self._balloons.append((ordered.began_seconds, fault))
                case SlowDevice() as fault:
                    self._slow.append((ordered.began_seconds, fault))
                case LoseTransfer() as fault:
                    self._loads.append(_Pending.of(ordered, fault))
                case FailAllocation(owner="kv_pool") as fault:
                    self._growths.append(_Pending.of(ordered, fault))
                case fault:
                    self._steps.append(_Pending.of(ordered, fault))

    @property
    def awaits_step(self) -> bool:
        """Whether a later step may be struck."""
        return any(pending.left for pending in self._steps)

    def strike_step(self, now_seconds: float) -> StepStrike | None:
        """A step is about to be computed: the strike that it meets, which counts as done."""
        pending = _first(self._steps, now_seconds)
        if pending is None:
            return None
        assert not isinstance(pending.fault, LoseTransfer)
        return StepStrike(pending.fault_id, pending.fault, pending.draws.random())

    def strike_growth(self, now_seconds: float) -> int | None:
        """The pool is about to take memory: the number of the fault that prevents it."""
        pending = _first(self._growths, now_seconds)
        return None if pending is None else pending.fault_id

    def strike_load(self, now_seconds: float) -> int | None:
        """A tier is about to be read: the number of the fault that loses the answer."""
        pending = _first(self._loads, now_seconds)
        return None if pending is None else pending.fault_id

    def foreign_share(self, now_seconds: float) -> float:
        """Share of the device that other processes want now."""
        shares = (fault.share_at(now_seconds - began) for began, fault in self._balloons)
        return min(1.0, sum(shares))

    def extra_seconds(self, now_seconds: float) -> float:
        """What a step takes longer now."""
        return sum(fault.extra_at(now_seconds - began) for began, fault in self._slow)


def _first(strikes: list[_Pending], now_seconds: float) -> _Pending | None:
    """The first that meets this occasion; it is an occasion for all of them."""
    meeting = [pending for pending in strikes if pending.meets(now_seconds)]
    if not meeting:
        return None
    meeting[0].left -= 1
    return meeting[0]
