"""Faults that were ordered: what each new engine is told of them, and what is left."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from service.engine.messages import Inject, OrderedFault
from service.faults.plan import Fault, FaultPlan, Spell, Strike


class FaultsDisabled(Exception):
    """This server takes no faults: it was started without `allow_faults`."""


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """How far the faults are."""

    ordered: int  # and not over
    strikes: int  # carried out since the start of the server


class FaultBook:
    """The faults in force. Its clock starts when the first engine hears of them.

    Pure: the caller sends what `inject` answers, and tells the time.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._faults: dict[int, Fault] = {}  # by number; of a strike: with the count that is left
        self._began_seconds: float | None = None  # None: no engine has heard of them yet
        self._next_id = 0
        self._strikes = 0

    def replace(self, plan: FaultPlan, now_seconds: float) -> int:
        """Orders these faults instead of all before; answers how many of those were not over.

        Raises FaultsDisabled.
        """
        if not self._allowed:
            raise FaultsDisabled
        replaced = len(self._open(now_seconds))
        first_id = self._next_id
        self._next_id += len(plan.faults)
        self._faults = dict(enumerate(plan.faults, first_id))
        self._began_seconds = None
        return replaced

    def fired(self, fault_id: int) -> None:
        """An engine carried this strike out once. One that was replaced meanwhile counts too."""
        self._strikes += 1
        fault = self._faults.get(fault_id)
        if not isinstance(fault, Strike):
            return
        if fault.count == 1:
            del self._faults[fault_id]
        else:
            self._faults[fault_id] = msgspec.structs.replace(fault, count=fault.count - 1)

    def inject(self, now_seconds: float) -> Inject:
        """What a ready engine has to be told now; without faults it ends those that it has."""
        if self._began_seconds is None:
            self._began_seconds = now_seconds
        began_seconds = self._began_seconds
        return Inject(
            [OrderedFault(i, began_seconds, fault) for i, fault in self._open(now_seconds)]
        )

    def figures(self, now_seconds: float) -> FaultFigures | None:
        """None where no faults are allowed."""
        if not self._allowed:
            return None
        return FaultFigures(len(self._open(now_seconds)), self._strikes)

    def _open(self, now_seconds: float) -> list[tuple[int, Fault]]:
        elapsed_seconds = 0.0 if self._began_seconds is None else now_seconds - self._began_seconds
        return [
            (fault_id, fault)
            for fault_id, fault in self._faults.items()
            if not isinstance(fault, Spell) or elapsed_seconds < fault.end_seconds
        ]
