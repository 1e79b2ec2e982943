"""The order in which sequences are admitted: by priority, then in turns over tenants."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice

from service.engine.request import Sequence, SequenceState

_IDLE_TENANTS = 64  # whose turns are remembered though they tell nothing any more


def cost_tokens(sequence: Sequence) -> int:
    """What a sequence is charged when it begins: its prompt, and the output expected of it."""
    spec = sequence.spec
    return len(spec.prompt_ids) + (spec.expected_tokens or spec.max_tokens)


class TurnQueue:
    """Newcomers of one priority: start-time fair queueing over their tenants.

    Each tenant has a start tag, which grows by the cost of each sequence that begins; the
    tenant of the lowest tag is next. One that had nothing waiting starts at the virtual time,
    which grows by what each of the waiting tenants gets on average. So nobody saves turns up,
    nobody pays for having used an engine that others left idle, and ever new tenants do not
    keep the old ones waiting. The sequences of one tenant stay in order of arrival, and with
    them what their prompts share (Goyal, Vin, Cheng: Start-time fair queueing, SIGCOMM 1996;
    virtual time as in Demers, Keshav, Shenker: Fair queueing, SIGCOMM 1989).
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Sequence]] = {}  # by tenant; never empty
        self._tags: dict[str, float] = {}
        self._virtual_time = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Sequence]:
        """As they would begin if nobody came meanwhile; over a snapshot."""
        waiting = {tenant: tuple(sequences) for tenant, sequences in self._waiting.items()}
        turns = [
            (self._tags[tenant], *_arrival(sequences[0]), tenant, 0)
            for tenant, sequences in waiting.items()
        ]
        heapq.heapify(turns)
        return _merged(waiting, turns)

    def add(self, sequence: Sequence) -> None:
        """Puts one behind the others of its tenant, by the time of its arrival."""
        tenant = sequence.spec.tenant
        if tenant not in self._waiting:
            self._waiting[tenant] = []
            self._tags[tenant] = max(self._virtual_time, self._tags.get(tenant, 0.0))
        insort(self._waiting[tenant], sequence, key=_arrival)

    def begin(self, sequence: Sequence) -> None:
        """Takes one out that is admitted, at its tenant's charge."""
        tenants = len(self._waiting)
        self.drop(sequence)
        tenant = sequence.spec.tenant
        cost = cost_tokens(sequence)
        self._virtual_time = max(self._virtual_time + cost / tenants, self._tags[tenant])
        self._tags[tenant] += cost
        if len(self._tags) > len(self._waiting) + _IDLE_TENANTS:
            self._forget_idle()

    def drop(self, sequence: Sequence) -> None:
        """Takes one out that costs nothing; ValueError if it is not there."""
        sequences = self._waiting.get(sequence.spec.tenant, [])
        sequences.remove(sequence)
        if not sequences:
            del self._waiting[sequence.spec.tenant]

    def _forget_idle(self) -> None:
        """A tag that is not above the virtual time is where anybody else would start."""
        self._tags = {
            tenant: tag
            for tenant, tag in self._tags.items()
            if tenant in self._waiting or tag > self._virtual_time
        }


def _merged(
    waiting: Mapping[str, tuple[Sequence, ...]], turns: list[tuple[float, float, int, str, int]]
) -> Iterator[Sequence]:
    """`turns` is a heap of (tag, arrival, order, tenant, index)."""
    while turns:
        tag, _, _, tenant, index = turns[0]
        sequence = waiting[tenant][index]
        yield sequence
        if index + 1 < len(waiting[tenant]):
            following = _arrival(waiting[tenant][index + 1])
            turn = (tag + cost_tokens(sequence), *following, tenant, index + 1)
            heapq.heapreplace(turns, turn)
        else:
            heapq.heappop(turns)


@dataclass(slots=True)
class _Level:
    """All that wait with the same priority."""

    returners: list[Sequence] = field(default_factory=list)  # in order of arrival
    newcomers: TurnQueue = field(default_factory=TurnQueue)


class WaitingQueue:
    """Sequences that wait for admission.

    A higher priority goes first. A preempted sequence, or one that an engine death
    interrupted, comes back before the newcomers of its priority, and is charged nothing: it
    was when it began. Newcomers take turns over tenants.
    """

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}  # by priority
        self._count = 0
        self.preempted_count = 0  # how many of them were preempted

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        """In order, over a snapshot: the queue may change meanwhile."""
        parts: list[Iterable[Sequence]] = []
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            parts += (tuple(level.returners), iter(level.newcomers))
        return chain.from_iterable(parts)

    def first(self, count: int) -> list[Sequence]:
        """The first ones in order, at most so many."""
        return list(islice(self, count))

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence in its place; it keeps its state until it is taken out."""
        level = self._levels.setdefault(sequence.priority, _Level())
        if _returns(sequence):
            insort(level.returners, sequence, key=_arrival)
        else:
            level.newcomers.add(sequence)
        self._count += 1
        self.preempted_count += sequence.state is SequenceState.PREEMPTED

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out that begins; ValueError if it is not there."""
        level = self._levels.get(sequence.priority, _Level())
        if _returns(sequence):
            level.returners.remove(sequence)
        else:
            level.newcomers.begin(sequence)
        self._took(sequence)

    def give_up(self, sequence: Sequence) -> None:
        """Takes a sequence out that will never begin; ValueError if it is not there."""
        level = self._levels.get(sequence.priority, _Level())
        if _returns(sequence):
            level.returners.remove(sequence)
        else:
            level.newcomers.drop(sequence)
        self._took(sequence)

    def _took(self, sequence: Sequence) -> None:
        self._count -= 1
        self.preempted_count -= sequence.state is SequenceState.PREEMPTED


def _returns(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.PREEMPTED or sequence.spec.resumed


def _arrival(sequence: Sequence) -> tuple[float, int]:
    return sequence.spec.arrival_seconds, sequence.order
