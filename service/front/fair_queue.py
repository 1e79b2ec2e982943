"""Who waits, by tenant: whom a newcomer comes after, and who gives way when all is full. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from service.front.forecast import Demand

Item = TypeVar("Item", bound=Hashable)


@dataclass(slots=True)
class _Group(Generic[Item]):
    """Those of one tenant and priority, oldest first."""

    demands: dict[Item, Demand] = field(default_factory=dict)
    sequences: int = 0
    prompt_tokens: float = 0.0


class WaitingRequests(Generic[Item]):
    """Requests in the order of the engine's queue: by priority, then in turns over tenants."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], _Group[Item]] = {}  # by priority and tenant
        self._keys: dict[Item, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, item: Item) -> bool:
        return item in self._keys

    def __iter__(self) -> Iterator[Item]:
        """Over a snapshot, in order of arrival."""
        return iter(tuple(self._keys))

    def demand(self, item: Item) -> Demand:
        """What one that waits is expected to take."""
        return self._groups[self._keys[item]].demands[item]

    def add(self, item: Item, tenant: str, priority: int, demand: Demand) -> None:
        """Puts a new one behind the others of its tenant."""
        key = self._keys[item] = (priority, tenant)
        group = self._groups.setdefault(key, _Group())
        group.demands[item] = demand
        group.sequences += demand.sequences
        group.prompt_tokens += demand.prompt_tokens

    def remove(self, item: Item) -> Demand | None:
        """Takes one out; None if it does not wait."""
        key = self._keys.pop(item, None)
        if key is None:
            return None
        group = self._groups[key]
        demand = group.demands.pop(item)
        group.sequences -= demand.sequences
        group.prompt_tokens -= demand.prompt_tokens
        if not group.demands:
            del self._groups[key]
        return demand

    def ahead_of(self, tenant: str, priority: int, sequences: int) -> tuple[int, float]:
        """Sequences, and prompt tokens of them, that begin before a newcomer of `sequences`.

        All of a higher priority, all of its own tenant, and of each other tenant as much as
        it has itself when its turn comes.
        """
        own = self._groups.get((priority, tenant))
        turn = sequences + (own.sequences if own else 0)
        ahead_sequences, ahead_tokens = 0, 0.0
        for (other_priority, other_tenant), group in self._groups.items():
            if other_priority < priority:
                continue
            counted = group.sequences
            if other_priority == priority and other_tenant != tenant:
                counted = min(counted, turn)
            ahead_sequences += counted
            ahead_tokens += group.prompt_tokens * counted / group.sequences
        return ahead_sequences, ahead_tokens

    def gives_way(self, tenant: str, priority: int) -> Item | None:
        """Who goes so that a newcomer may wait: the newest of the tenant with most waiting.

        None if that tenant would not be left with at least as many as the newcomer's then has,
        or if all of them are of a higher priority.
        """
        counts: dict[str, int] = {tenant: 0}
        for (group_priority, group_tenant), group in self._groups.items():
            if group_priority <= priority:
                counts[group_tenant] = counts.get(group_tenant, 0) + len(group.demands)
        longest = max(counts, key=lambda name: counts[name])
        if counts[longest] - 1 < counts[tenant] + 1:
            return None
        lowest = min(p for p, t in self._groups if t == longest)
        return next(reversed(self._groups[lowest, longest].demands))
