"""Finds the requests that kill every engine they come to, so that nobody else pays for them.

After an engine death every live request goes to the next engine, also the one whose
computation was the cause: it kills the next engine at the same place. Which one it was
cannot be seen from outside, so it is found by trial:

- A request is *proven* in an engine when each of its sequences has got something from it.
- Most deaths have other causes (the OOM killer, an operator, the device), so after the first
  one all requests enter the next engine together.
- A request that was in flight and not proven at two deaths in a row is a *suspect*. While
  there are suspects, requests enter one at a time, suspects first, those of most deaths before
  the others, and the next one only when the one before is proven. The proven ones go on.
- So whoever is in when the engine dies is the only one that can be to blame, and is the first
  to enter the next engine, alone. It is *convicted* when it has twice crashed an engine at the
  same place, the second time with no other request in it, or when engines with no other
  request in them died often enough in whatever way.

One that kills among n costs a constant number of restarts; bisection would need log n and
save only n short waits. Deaths from outside convict nobody: a request that comes further than
before has not crashed there by itself, and a signal that a crash does not send counts little.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from service.front.restart import EngineLife

# Deaths in a row with a request in flight and not proven after which it is a suspect.
SUSPECT_DEATHS = 2
# Crashes at the same place that convict, the last of them with no other request in the engine.
CONVICTING_CRASHES = 2
# Deaths in whatever way, with no other request in the engine, that convict. More than the
# crashes: SIGKILL may come from anyone, and may hit an innocent request that is alone.
CONVICTING_DEATHS = 4
# Longest search that convicts: two deaths together, and those alone. Beyond that it does not
# come on, because requests leave before they are convicted.
_SEARCH_DEATHS = SUSPECT_DEATHS + CONVICTING_DEATHS

Request = TypeVar("Request", bound=Hashable)


@dataclass(slots=True)
class _Evidence:
    """What speaks against a request since it was proven last."""

    deaths: int = 0  # with it in flight
    lone_deaths: int = 0  # in a row, with no other request in the engine and none further on
    furthest_step: int = -1  # that it reached alone
    crashes: int = 0  # in a row at `crash_step`, with nobody else to blame
    crash_step: int | None = None  # None: not known, since others were in the engine too

    def blame(self, step: int, *, crashed: bool, alone: bool) -> bool:
        """Notes a death for which nobody else is to blame. True: that convicts it."""
        if alone:
            self.lone_deaths = 1 if step > self.furthest_step else self.lone_deaths + 1
            self.furthest_step = max(self.furthest_step, step)
        if crashed:
            place = step if alone else None
            self.crashes = self.crashes + 1 if self.crash_step in (None, place) else 1
            self.crash_step = place
        return alone and (
            (crashed and self.crashes >= CONVICTING_CRASHES)
            or self.lone_deaths >= CONVICTING_DEATHS
        )


@dataclass(slots=True)
class _Record:
    """What is known about one live request."""

    in_flight: bool = False
    awaited: set[int] = field(default_factory=set)  # sequences that got nothing from this engine
    entered_step: int = 0
    evidence: _Evidence = field(default_factory=_Evidence)


@dataclass(frozen=True, slots=True)
class Conviction(Generic[Request]):
    """A request that kills engines; the quarantine has forgotten it."""

    request: Request
    deaths: int  # of engines, since it got something last


@dataclass(frozen=True, slots=True)
class Inquest(Generic[Request]):
    """What one death says."""

    in_flight: int  # requests that can have been in the fatal step
    suspects: int  # requests that from now on enter one at a time
    conviction: Conviction[Request] | None
    life: EngineLife


class Quarantine(Generic[Request]):
    """Who may enter the present engine, and who is to blame for the deaths of the past ones.

    A request is live from `add` to `remove`, and waits until `enter`. `died` makes all live
    ones wait again.
    """

    def __init__(self) -> None:
        self._records: dict[Request, _Record] = {}  # in order of arrival
        self._waiting: OrderedDict[Request, None] = OrderedDict()
        self._unproven: set[Request] = set()  # in flight
        self._suspects: set[Request] = set()  # waiting or unproven
        self._awaited: dict[int, Request] = {}  # by sequence
        self._steps = 0
        self._progress = False  # since the last death
        self._search_deaths = 0  # without progress or conviction

    @property
    def waiting(self) -> int:
        """Live requests that are not in the engine."""
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """A new request waits."""
        self._records[request] = _Record()
        self._waiting[request] = None

    def remove(self, request: Request) -> None:
        """The request is over or nobody wants it any more. Idempotent."""
        record = self._records.pop(request, None)
        if record is None:
            return
        for sequence_id in record.awaited:
            del self._awaited[sequence_id]
        self._waiting.pop(request, None)
        self._unproven.discard(request)
        self._suspects.discard(request)

    def next_entrant(self) -> Request | None:
        """The waiting request to send to the engine now; None: there is none, or it must wait."""
        if self._suspects and self._unproven:
            return None
        return next(iter(self._waiting), None)

    def enter(self, request: Request, sequence_ids: Iterable[int]) -> None:
        """A waiting request is sent to the engine with these of its sequences, at least one."""
        del self._waiting[request]
        record = self._records[request]
        record.in_flight = True
        record.entered_step = self._steps
        record.awaited = set(sequence_ids)
        self._awaited.update(dict.fromkeys(record.awaited, request))
        self._unproven.add(request)

    def stepped(self) -> None:
        """The engine reported a step; what the step yielded is told with `progressed`."""
        self._steps += 1

    def progressed(self, sequence_id: int) -> None:
        """The engine computed a token of the sequence, or ended it."""
        request = self._awaited.pop(sequence_id, None)
        if request is None:
            return
        self._progress = True
        record = self._records[request]
        record.awaited.remove(sequence_id)
        if not record.awaited:
            record.evidence = _Evidence()
            self._unproven.remove(request)
            self._suspects.discard(request)

    def died(self, *, crashed: bool) -> Inquest[Request]:
        """The engine is dead; all live requests wait again, except one that is convicted.

        `crashed`: by its own doing, as far as its end tells.
        """
        in_flight = [r for r, record in self._records.items() if record.in_flight]
        for request in in_flight:
            self._records[request].evidence.deaths += 1
        conviction = self._convict(crashed=crashed, alone=len(in_flight) == 1)
        life = self._judge_life(in_flight=bool(in_flight), convicted=conviction is not None)
        self._restart()
        return Inquest(len(in_flight), len(self._suspects), conviction, life)

    def _convict(self, *, crashed: bool, alone: bool) -> Conviction[Request] | None:
        if len(self._unproven) != 1:
            return None
        (request,) = self._unproven
        record = self._records[request]
        step = self._steps - record.entered_step
        if not record.evidence.blame(step, crashed=crashed, alone=alone):
            return None
        self.remove(request)
        return Conviction(request, record.evidence.deaths)

    def _judge_life(self, *, in_flight: bool, convicted: bool) -> EngineLife:
        """Of the engine that died.

        Convictions without progress in between count as nothing: an engine that dies of
        every request is broken itself.
        """
        if self._progress or convicted:
            self._search_deaths = 0
            return EngineLife.PROGRESS if self._progress else EngineLife.NOTHING
        if in_flight and self._search_deaths < _SEARCH_DEATHS:
            self._search_deaths += 1
            return EngineLife.EVIDENCE
        return EngineLife.NOTHING

    def _restart(self) -> None:
        """All live requests wait for the next engine, suspects first."""
        for record in self._records.values():
            record.in_flight = False
            record.awaited = set()
        self._awaited.clear()
        self._unproven.clear()
        self._progress = False
        suspects = [
            request
            for request, record in self._records.items()
            if record.evidence.deaths >= SUSPECT_DEATHS
        ]
        suspects.sort(key=lambda request: self._records[request].evidence.deaths, reverse=True)
        self._suspects = set(suspects)
        self._waiting = OrderedDict.fromkeys([*suspects, *self._records])
