"""Who waits and who has begun, in numbers that forecasts and shares are made of. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from service.front.fair_queue import WaitingRequests
from service.front.forecast import Demand, Load

Item = TypeVar("Item", bound=Hashable)


@dataclass(slots=True)
class _Begun:
    """One that was in a batch."""

    tenant: str
    demand: Demand
    is_read: bool = False  # its prompt: the first token has come


class Occupancy(Generic[Item]):
    """Follows each request from its arrival until the engine is done with it."""

    def __init__(self) -> None:
        self.waiting: WaitingRequests[Item] = WaitingRequests()
        self._begun: dict[Item, _Begun] = {}
        self._tenants: dict[Item, str] = {}
        self._sequences: Counter[str] = Counter()  # of each tenant, waiting or begun
        self._running_sequences = 0
        self._unread_prompt_tokens = 0.0

    def arrived(self, item: Item, tenant: str, priority: int, demand: Demand) -> None:
        """A new one waits."""
        self.waiting.add(item, tenant, priority, demand)
        self._tenants[item] = tenant
        self._sequences[tenant] += demand.sequences

    def began(self, item: Item) -> bool:
        """It entered a batch. False: it did not wait any more."""
        demand = self.waiting.remove(item)
        if demand is None:
            return False
        self._begun[item] = _Begun(self._tenants[item], demand)
        self._running_sequences += demand.sequences
        self._unread_prompt_tokens += demand.prompt_tokens
        return True

    def spoke(self, item: Item) -> None:
        """Its first token has come. Idempotent."""
        begun = self._begun.get(item)
        if begun is not None and not begun.is_read:
            begun.is_read = True
            self._unread_prompt_tokens -= begun.demand.prompt_tokens

    def left(self, item: Item) -> None:
        """The engine is done with it, whatever it did last. Idempotent."""
        tenant = self._tenants.pop(item, None)
        if tenant is None:
            return
        demand = self.waiting.remove(item)
        if demand is None:
            self.spoke(item)
            demand = self._begun.pop(item).demand
            self._running_sequences -= demand.sequences
        self._sequences[tenant] -= demand.sequences
        if not self._sequences[tenant]:
            del self._sequences[tenant]

    def is_below_share(self, tenant: str, sequences: int) -> bool:
        """Whether a tenant has less than the mean of all tenants, its newcomer counted."""
        own = self._sequences[tenant] + sequences
        tenants = len(self._sequences) + (tenant not in self._sequences)
        return own * tenants < self._sequences.total() + sequences

    def load(self, slots: int) -> Load:
        """What one finds that starts right now, if any of `slots` is free."""
        return Load(
            slots=slots,
            running=self._running_sequences,
            unread_prompt_tokens=self._unread_prompt_tokens,
        )

    def load_before(self, slots: int, tenant: str, priority: int, sequences: int) -> Load:
        """What a newcomer of so many sequences finds, those included that begin before it."""
        ahead_sequences, ahead_tokens = self.waiting.ahead_of(tenant, priority, sequences)
        return replace(self.load(slots), ahead=ahead_sequences, ahead_prompt_tokens=ahead_tokens)
