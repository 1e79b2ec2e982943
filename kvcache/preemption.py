"""Whose blocks to take back when running sequences outgrow the pool, and how. Pure.

Three ways lead back to a sequence that was preempted, see `PreemptionMode`. vLLM has the
last two, chosen by configuration, and takes the last admitted (PagedAttention, Kwon et al.
2023, section 4.5); the choice here is by measured cost.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvcache.errors import InvalidArgumentError
from kvcache.rates import PreemptionRates


class PreemptionMode(enum.Enum):
    """How the blocks of a victim come back."""

    TRIM = "trim"  # only its last blocks are taken, and only their tokens computed again
    SWAP = "swap"  # its full blocks are copied to the host, and back when it returns
    RECOMPUTE = "recompute"  # all that it alone holds is computed again


@dataclass(frozen=True, slots=True)
class VictimCandidate:
    """What the choice needs to know of one running sequence."""

    sequence_id: int
    priority: int  # higher is kept longer
    admitted_serial: int  # grows with every admission
    progressed: bool  # never preempted, or has produced a token since
    blocks: int  # in its table
    exclusive_blocks: int  # of these, the last ones, that nobody else holds: all it can free
    computed_tokens: int  # leading tokens whose K and V are written
    reusable: bool  # its full blocks are published, and it will hit them on its return

    @property
    def shared_blocks(self) -> int:
        """Leading blocks that others hold too; preempting this one frees none of them."""
        return self.blocks - self.exclusive_blocks


@dataclass(frozen=True, slots=True)
class Preemption:
    """One victim and what is done with it."""

    sequence_id: int
    mode: PreemptionMode
    keep_blocks: int  # leading blocks that stay in the pool (TRIM); 0 otherwise
    freed_blocks: int
    host_blocks: int  # to copy to the host (SWAP); 0 otherwise
    cost_seconds: float  # in tokens, while no prefill rate is measured


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The victims, to be taken in this order."""

    victims: tuple[Preemption, ...]

    @property
    def freed_blocks(self) -> int:
        """Blocks that become available when all victims are taken."""
        return sum(victim.freed_blocks for victim in self.victims)

    @property
    def cost_seconds(self) -> float:
        """What the victims lose, added up."""
        return sum(victim.cost_seconds for victim in self.victims)


def plan_preemption(
    candidates: Sequence[VictimCandidate],
    short_blocks: int,
    rates: PreemptionRates,
    *,
    host_free_blocks: int = 0,
    needy_id: int | None = None,
    all_or_nothing: bool = False,
) -> PreemptionPlan | None:
    """The cheapest way to make `short_blocks` available; None when there is none.

    Lowest priority first: no class gives a victim while the lower ones have enough. Then the
    lowest cost, then the last admitted. With `short_blocks` 0 only a place in the batch is
    wanted, and the plan has one victim that keeps all it can. `host_free_blocks` bounds what
    is swapped; beyond that victims are recomputed.

    A sequence that has not produced a token since its last preemption is spared: taking it
    again would be a livelock in which work is done and nothing comes out.

    `needy_id` names the running sequence that is short. It may be its own victim, since that
    ends the need, but not the only candidate: its blocks would be given to itself. If all
    candidates are spared ones, the last admitted goes, so that the oldest comes to its end.

    A running sequence cannot wait, so a plan for it may be one step of several: if the
    candidates cannot free enough by themselves, one goes all the same, because blocks that
    were shared with it become another's own; ask again then. For a waiting one that would
    often be in vain, victims lose their work and nobody starts: with `all_or_nothing` the
    plan frees all of `short_blocks` with victims that are not spared, or there is none.
    """
    for name, blocks in (("short_blocks", short_blocks), ("host_free_blocks", host_free_blocks)):
        if blocks < 0:
            raise InvalidArgumentError(name, blocks, "at least 0")
    if all(candidate.sequence_id == needy_id for candidate in candidates):
        return None
    chooser = _Chooser(rates, short_blocks, host_free_blocks)
    progressed = [candidate for candidate in candidates if candidate.progressed]
    if group := _lowest_classes(progressed, short_blocks):
        return chooser.cheapest_plan(group)
    if all_or_nothing:
        return None
    if progressed:
        return chooser.single(min(progressed, key=chooser.order))
    return chooser.single(max(candidates, key=lambda candidate: candidate.admitted_serial))


def _lowest_classes(
    candidates: Sequence[VictimCandidate], short_blocks: int
) -> list[VictimCandidate]:
    """All candidates up to the lowest priority with which they free enough; [] if none does."""
    for highest in sorted({candidate.priority for candidate in candidates}):
        group = [candidate for candidate in candidates if candidate.priority <= highest]
        if sum(candidate.exclusive_blocks for candidate in group) >= short_blocks:
            return group
    return []


class _Chooser:
    """Compares victims for one need at one time."""

    def __init__(self, rates: PreemptionRates, short_blocks: int, host_free_blocks: int) -> None:
        self._rates = rates
        self._short_blocks = short_blocks
        self._host_free_blocks = host_free_blocks

    def cheapest_plan(self, group: list[VictimCandidate]) -> PreemptionPlan:
        """Of the plans with one victim, and two greedy ones with several, the cheapest.

        The best set of victims is a knapsack problem. The order by cost per block comes close
        to it; the order of last admission is what others do, and never to be worse than that
        costs nothing.
        """
        plans = [
            (self.single(candidate), candidate.admitted_serial)
            for candidate in group
            if candidate.exclusive_blocks >= self._short_blocks
        ]
        if not plans or self._short_blocks > 1:
            orders: tuple[Callable[[VictimCandidate], tuple[float, ...]], ...] = (
                lambda candidate: (
                    candidate.priority,
                    self._cost_per_block(candidate),
                    -candidate.admitted_serial,
                ),
                lambda candidate: (candidate.priority, -candidate.admitted_serial),
            )
            giving = [candidate for candidate in group if candidate.exclusive_blocks]
            for order in orders:
                victims = self._enough_of(sorted(giving, key=order))
                plans.append((self._take(victims), victims[-1].admitted_serial))
        return min(plans, key=lambda plan: (plan[0].cost_seconds, -plan[1]))[0]

    def single(self, candidate: VictimCandidate) -> PreemptionPlan:
        """One victim that gives as much as is wanted, or all it has."""
        wanted = min(self._short_blocks, candidate.exclusive_blocks)
        return PreemptionPlan((self._cheapest_mode(candidate, wanted, self._host_free_blocks),))

    def order(self, candidate: VictimCandidate) -> tuple[float, ...]:
        """Lowest priority, cheapest, last admitted."""
        cost = self.single(candidate).cost_seconds
        return (candidate.priority, cost, -candidate.admitted_serial)

    def _cost_per_block(self, candidate: VictimCandidate) -> float:
        plan = self.single(candidate)
        return plan.cost_seconds / min(self._short_blocks, plan.freed_blocks)

    def _enough_of(self, order: Iterable[VictimCandidate]) -> list[VictimCandidate]:
        """The first ones that free enough together, less those that are not needed after all."""
        victims: list[VictimCandidate] = []
        surplus = -self._short_blocks
        for candidate in order:
            if surplus >= 0:
                break
            victims.append(candidate)
            surplus += candidate.exclusive_blocks
        for candidate in reversed(victims[:-1]):  # without the last one it was not enough
            if candidate.exclusive_blocks <= surplus:
                victims.remove(candidate)
                surplus -= candidate.exclusive_blocks
        return victims

    def _take(self, victims: list[VictimCandidate]) -> PreemptionPlan:
        """All blocks of the victims, but of the last one only what is still lacking."""
        taken: list[Preemption] = []
        host_free_blocks = self._host_free_blocks
        lacking = self._short_blocks
        for candidate in victims:
            wanted = candidate.exclusive_blocks
            if candidate is victims[-1]:
                wanted = min(wanted, lacking)
            victim = self._cheapest_mode(candidate, wanted, host_free_blocks)
            taken.append(victim)
            host_free_blocks -= victim.host_blocks
            lacking -= victim.freed_blocks
        return PreemptionPlan(tuple(taken))

    def _cheapest_mode(
        self, candidate: VictimCandidate, wanted_blocks: int, host_free_blocks: int
    ) -> Preemption:
        """How to free at least `wanted_blocks` of a candidate that has as many."""
        modes = [self._recompute(candidate)]
        computed_blocks = candidate.computed_tokens // self._rates.block_tokens
        keepable = computed_blocks if candidate.reusable else 0
        keep_blocks = min(keepable, candidate.blocks - wanted_blocks)
        if keep_blocks > candidate.shared_blocks:
            modes.append(self._trim(candidate, keep_blocks))
        copied = keepable - candidate.shared_blocks
        swap_seconds = self._rates.swap_seconds(copied)
        if 0 < copied <= host_free_blocks and swap_seconds is not None:
            modes.append(self._swap(candidate, copied, swap_seconds))
        return min(modes, key=lambda mode: mode.cost_seconds)

    def _recompute(self, candidate: VictimCandidate) -> Preemption:
        return Preemption(
            candidate.sequence_id,
            PreemptionMode.RECOMPUTE,
            keep_blocks=0,
            freed_blocks=candidate.exclusive_blocks,
            host_blocks=0,
            cost_seconds=self._cost(candidate, candidate.shared_blocks),
        )

    def _trim(self, candidate: VictimCandidate, keep_blocks: int) -> Preemption:
        return Preemption(
            candidate.sequence_id,
            PreemptionMode.TRIM,
            keep_blocks=keep_blocks,
            freed_blocks=candidate.blocks - keep_blocks,
            host_blocks=0,
            cost_seconds=self._cost(candidate, keep_blocks),
        )

    def _swap(
        self, candidate: VictimCandidate, host_blocks: int, swap_seconds: float
    ) -> Preemption:
        back = candidate.shared_blocks + host_blocks
        return Preemption(
            candidate.sequence_id,
            PreemptionMode.SWAP,
            keep_blocks=0,
            freed_blocks=candidate.exclusive_blocks,
            host_blocks=host_blocks,
            cost_seconds=swap_seconds + self._cost(candidate, back),
        )

    def _cost(self, candidate: VictimCandidate, blocks_back: int) -> float:
        """Cost when all tokens beyond the first `blocks_back` blocks are computed again."""
        rates = self._rates
        tokens = max(0, candidate.computed_tokens - blocks_back * rates.block_tokens)
        return rates.stall_seconds + rates.recompute_seconds(tokens)
