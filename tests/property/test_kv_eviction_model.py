"""The Python core against a model that looks at every block: same victims, same refusals."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import event, given, settings
from kv_block_model import GROUPS, Holder, Model

from kvcache.core import CoreCounts, HolderKind
from kvcache.core.python_core import PythonCore
from kvcache.errors import OutOfBlocksError

PROTECTED_SHARE = 0.25


def array(tokens: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


class Step(NamedTuple):
    """What happens next; an action looks at the fields that it needs."""

    action: str
    prompt: tuple[int, ...]
    group: int
    level: int
    kind: HolderKind
    flag: bool
    number: int


ACTIONS = {
    "use": 6,
    "arrive": 3,
    "keep": 2,
    "decode": 2,
    "release": 4,
    "expire": 2,
    "evict": 1,
    "resize": 1,
}
STEPS = st.builds(
    Step,
    action=st.sampled_from([action for action, weight in ACTIONS.items() for _ in range(weight)]),
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple),
    group=st.sampled_from([0, 0, 0, 1, 1, 2]),
    level=st.sampled_from([0, 0, 0, 1, 2, 7]),
    kind=st.sampled_from([HolderKind.PIN, HolderKind.STORE, HolderKind.EXPECT, HolderKind.LOAD]),
    flag=st.booleans(),
    number=st.integers(0, 24),
)
SHARES = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.integers(1, 12)), min_size=3, max_size=3
)


class LockStep:
    """A core and the model, doing the same."""

    def __init__(self, pool: int, weight: int, shares: list[tuple[int, int | None]]) -> None:
        floors = [floor for floor, _ in shares]
        while sum(floors) > pool:
            floors[floors.index(max(floors))] -= 1
        quotas = [quota and max(quota, floors[group]) for group, (_, quota) in enumerate(shares)]
        protected = int(pool * PROTECTED_SHARE)
        self.model = Model(pool, weight, protected, tuple(floors), tuple(quotas))
        self.core = PythonCore(pool + 1, 1, weight, protected)
        for group in GROUPS:
            quota = quotas[group]
            self.core.set_group(group, floors[group], -1 if quota is None else quota)
        self.number = 0
        self.floors_fit = True

    def changing(self, group: int) -> None:
        """A group is about to take blocks: remembers what the others have."""
        others = [h for h in GROUPS if h != group]
        self.left_to_others = {h: min(self.model.charged(h), self.model.floors[h]) for h in others}

    def changed(self, group: int) -> None:
        """It has taken new ones."""
        for other, least in self.left_to_others.items():
            assert self.model.charged(other) >= least, "a floor was undercut"
        quota = self.model.quotas[group]
        assert quota is None or self.model.charged(group) <= quota

    def use(self, step: Step) -> None:
        """A sequence from its begin to its end."""
        if self.arrive(step._replace(flag=True, kind=HolderKind.SEQUENCE)):
            self.model.release(self.number)
            assert self.core.release(self.number)

    def arrive(self, step: Step) -> bool:
        """A sequence, or a load, that computes what it began with or stops on the way."""
        kind = HolderKind.LOAD if step.kind is HolderKind.LOAD else HolderKind.SEQUENCE
        hits = self.model.hits(step.group, step.prompt, len(step.prompt) - 1)
        holder = Holder(kind, step.group, step.level, step.prompt, hits)
        has_begun = self.begin(holder, is_reuse=step.number % 4 > 0 and kind is HolderKind.SEQUENCE)
        if has_begun and step.flag:
            self.commit(self.number, len(step.prompt))
        return has_begun

    def keep(self, step: Step) -> None:
        """A holder of what is there."""
        hits = self.model.hits(step.group, step.prompt, len(step.prompt))
        if hits > 0:
            holder = Holder(step.kind, step.group, step.level, step.prompt[:hits], hits)
            self.begin(holder, is_reuse=False)

    def begin(self, holder: Holder, *, is_reuse: bool) -> bool:
        tokens, namespace = array(holder.tokens), b"%d" % holder.group
        match = self.core.match(namespace, tokens, len(holder.tokens))
        known = self.model.hits(holder.group, holder.tokens, len(holder.tokens))
        to_be_had = sum(
            self.model.blocks[holder.group, holder.tokens[:end]].can_be_had
            for end in range(1, known + 1)
        )
        assert match[:2] == (known, to_be_had)
        match = self.core.match(namespace, tokens, holder.computed)
        self.number += 1
        self.changing(holder.group)
        arguments = (self.number, namespace, tokens, True, match, is_reuse)
        refused = self.model.begin(self.number, holder, is_reuse=is_reuse)
        count = len(holder.tokens) - holder.computed

        def begin() -> None:
            self.core.begin(*arguments, holder.kind, holder.group, holder.level)

        if refused is None:
            begin()
            if count > 0:
                self.changed(holder.group)
            return True
        event(f"begin of {holder.kind.name} refused")
        with pytest.raises(OutOfBlocksError) as caught:
            begin()
        assert (caught.value.wanted_blocks, caught.value.free_blocks) == (count, refused)
        return False

    def commit(self, number: int, computed: int) -> None:
        self.model.commit(number, computed)
        self.core.commit(number, computed)

    def some_holder(self, step: Step) -> int | None:
        """The oldest one, or any."""
        numbers = sorted(self.model.holders)
        if not numbers:
            return None
        return numbers[0] if step.flag else numbers[step.number % len(numbers)]

    def decode(self, step: Step) -> None:
        """One token more."""
        number = self.some_holder(step)
        if number is None or self.model.holders[number].kind is not HolderKind.SEQUENCE:
            return
        holder = self.model.holders[number]
        self.commit(number, len(holder.tokens))
        self.changing(holder.group)
        fits = self.model.append(number, step.number % 2)
        assert self.core.append(number, step.number % 2) == (0 if fits else 1)
        if fits:
            self.changed(holder.group)

    def release(self, step: Step) -> None:
        """A holder goes."""
        number = self.some_holder(step)
        if number is not None:
            self.model.release(number)
            assert self.core.release(number)

    def evict(self, step: Step) -> None:
        """Memory is wanted elsewhere."""
        count = step.number % 6
        evicted = sum(self.model.evict(GROUPS) for _ in range(count))
        assert self.core.evict(count) == evicted

    def expire(self, step: Step) -> None:
        """Time goes by for the levels up to one of them."""
        for level in range(1, 1 + max(1, step.level)):
            low = self.model.expiry[level]
            high = self.model.now if level == 1 else self.model.expiry[level - 1]
            tick = high if step.flag else (low + high) // 2
            self.model.expiry[level] = tick
            self.core.set_expiry(level, tick)

    def resize(self, step: Step) -> None:
        """Another pool."""
        usable = max(1, step.number)
        fixed = self.model.pool - self.model.free() - len(self.model.cached())
        if fixed > usable:
            event("resize refused")
            with pytest.raises(OutOfBlocksError) as caught:
                self.core.resize(usable + 1)
            assert (caught.value.wanted_blocks, caught.value.free_blocks) == (fixed, usable)
            return
        while self.model.pool - self.model.free() > usable:
            assert self.model.evict(GROUPS)
        self.model.pool = usable
        self.core.resize(usable + 1)
        # What is in use may leave no room for the floors in a smaller pool.
        lacking = sum(max(0, self.model.floors[h] - self.model.in_use(h)) for h in GROUPS)
        self.floors_fit = self.model.free() + self.model.to_be_had() >= lacking

    def the_core_is_as_the_model_says(self) -> None:
        """Which blocks there are, how many of each kind, and what can be had."""
        self.core.audit()
        model, keys = self.model, {}
        for namespace, parent, (block,), tokens in self.core.runs():
            before = () if parent is None else keys[parent][1]
            keys[block] = int(namespace), before + tokens
        assert set(keys.values()) == set(model.blocks)
        counts = CoreCounts(*self.core.counts())
        assert (counts.free, counts.cached) == (model.free(), len(model.cached()))
        assert counts.cached + counts.expected == model.to_be_had()
        assert (counts.evicted, self.core.ticks) == (model.evicted, model.now)
        for group in GROUPS:
            assert self.core.available_blocks(group) == model.available(group)
            in_use = model.in_use(group), model.to_be_had([group])
            assert self.core.group_counts(group) == in_use
            if self.floors_fit:
                lacking = model.floors[group] - model.in_use(group)
                assert model.available(group) >= lacking, "a floor is not there when wanted"


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    pool=st.integers(4, 20),
    weight=st.sampled_from([2, 2, 2, 0]),
    shares=SHARES,
    steps=st.lists(STEPS, min_size=30, max_size=100),
)
def test_the_core_gives_up_and_refuses_what_the_model_does(
    pool: int, weight: int, shares: list[tuple[int, int | None]], steps: list[Step]
) -> None:
    both = LockStep(pool, weight, shares)
    for step in steps:
        getattr(both, step.action)(step)
        both.the_core_is_as_the_model_says()
