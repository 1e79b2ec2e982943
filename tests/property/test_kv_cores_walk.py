"""Long random lives of the native core and its oracle in lock step, in pools that are full.

Where test_kv_cores_agree finds the short sequence of odd calls that breaks something, this has
floors, quotas, levels and evictions all at work at the same time, for thousands of steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kv_cores import needs_native

from kvcache.core import CacheCore, HolderKind
from kvcache.core.python_core import PythonCore
from kvcache.errors import KVCacheError

GROUP_OF = {b"a": 0, b"b": 3, b"c": 31}
LIVE_SEQUENCES, LIVE_OTHERS = 5, 4  # at most
STEPS = 1_500


class Walk:
    """Draws operations by one random number generator and does each with both cores."""

    def __init__(self, seed: int) -> None:
        from kvcache._native import NativeCore

        self.random = random.Random(seed)
        self.size = self.random.choice([1, 2, 3, 16])
        weight, protected = self.random.choice([0, 2, 2, 3]), self.random.randint(0, 8)
        arguments = self.random.randint(12, 40), self.size, weight, protected, True
        self.cores: list[CacheCore] = [NativeCore(*arguments), PythonCore(*arguments)]
        self.sequences: list[int] = []
        self.others: list[int] = []
        self.next_id = 0

    def both(self, action: Callable[[CacheCore], object]) -> Any:
        """Does the same with each; answers what both answered, or None if both refused."""
        answers: list[object] = []
        for core in self.cores:
            try:
                answers.append((action(core), None))
            except KVCacheError as error:
                answers.append((None, (type(error), str(error))))
        assert answers[0] == answers[1]
        return answers[0][0]  # type: ignore[index]

    def begin(self, holders: list[int], kind: HolderKind) -> None:
        namespace = self.random.choice(list(GROUP_OF))
        prompt = [self.random.randint(0, 3)] * (self.random.randint(1, 4) * self.size)
        prompt[len(prompt) // 2 :] = [self.random.randint(0, 2)] * (len(prompt) - len(prompt) // 2)
        tokens = np.array([*prompt, 7], np.int32)
        most = self.random.choice([tokens.size // self.size, (tokens.size - 1) // self.size])
        match = self.both(lambda core: core.match(namespace, tokens, most))
        self.both(lambda core: core.partial_match(namespace, tokens, match))
        self.both(lambda core: core.forgotten_blocks(namespace, tokens, match, most))
        self.both(lambda core: core.pending_blocks(namespace, tokens, most))
        if kind not in (HolderKind.SEQUENCE, HolderKind.LOAD):
            tokens = tokens[: match[0] * self.size]
        holder_id, group, level = (
            self.next_id,
            GROUP_OF[namespace],
            self.random.choice([0, 0, 1, 5]),
        )
        publish = kind in (HolderKind.SEQUENCE, HolderKind.LOAD)
        self.next_id += 1
        begin = holder_id, namespace, tokens, publish, match, not kind, kind, group, level
        self.both(lambda core: core.begin(*begin))
        if self.both(lambda core: core.is_live(holder_id)):
            holders.append(holder_id)

    def end(self, holders: list[int]) -> None:
        holder_id = holders.pop(self.random.randrange(len(holders)))
        if self.random.random() < 0.8:
            self.both(lambda core: core.commit(holder_id, core.num_tokens(holder_id)))
        assert self.both(lambda core: core.release(holder_id))

    def grow(self) -> None:
        holder_id = self.random.choice(self.sequences)
        for token in self.random.choices([0, 1], k=2 * self.size):
            self.both(lambda core, token=token: core.append(holder_id, token))
        self.both(lambda core: core.commit(holder_id, core.num_tokens(holder_id)))

    def fork(self) -> None:
        parent_id, child_id = self.random.choice(self.sequences), self.next_id
        self.next_id += 1
        self.both(lambda core: core.commit(parent_id, core.num_tokens(parent_id)))
        self.both(lambda core: core.fork(parent_id, child_id))
        if self.both(lambda core: core.is_live(child_id)):
            self.sequences.append(child_id)

    def change_rules(self) -> None:
        group = self.random.choice(list(GROUP_OF.values()))
        floor, quota = self.random.choice([0, 0, 2, 4]), self.random.choice([-1, -1, 5, 9])
        self.both(lambda core: core.set_group(group, floor, quota))
        level, back = self.random.choice([1, 1, 2, 3, 4, 5]), self.random.randint(0, 9)
        for lower in range(1, level + 1):
            self.both(lambda core, lower=lower: core.set_expiry(lower, core.ticks - back))

    def resize(self) -> None:
        num_blocks = self.random.randint(10, 40)
        self.both(lambda core: core.resize(num_blocks))

    def step(self) -> None:
        kind = self.random.choice([kind for kind in HolderKind if kind])
        chance = self.random.random()
        if chance < 0.35:
            if len(self.sequences) < LIVE_SEQUENCES:
                self.begin(self.sequences, HolderKind.SEQUENCE)
            else:
                self.end(self.sequences)
        elif chance < 0.5 and self.sequences:
            self.end(self.sequences)
        elif chance < 0.65:
            if len(self.others) < LIVE_OTHERS:
                self.begin(self.others, kind)
            else:
                self.end(self.others)
        elif chance < 0.8 and self.sequences:
            self.grow()
        elif chance < 0.85 and 0 < len(self.sequences) < LIVE_SEQUENCES:
            self.fork()
        elif chance < 0.92:
            self.change_rules()
        elif chance < 0.96:
            self.resize()
        elif chance < 0.97:
            namespace = self.random.choice(list(GROUP_OF))
            self.both(lambda core: core.flush(namespace))
        else:
            self.both(lambda core: core.evict(chance > 0.985))

    def compare(self) -> None:
        self.both(lambda core: core.audit())
        self.both(lambda core: (core.counts(), core.version, core.ticks, core.highest_used()))
        for group in GROUP_OF.values():
            self.both(lambda core, g=group: (core.group_counts(g), core.available_blocks(g)))
        for holder_id in (*self.sequences, *self.others):
            self.both(lambda core, i=holder_id: bytes(core.block_table(i)))
            self.both(lambda core, i=holder_id: core.exclusive_blocks(i))
        self.both(lambda core: sorted(core.runs(), key=lambda run: run[2]))
        if self.random.random() < 0.5:
            self.both(lambda core: (core.drain_events(), core.drain_samples()))


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_long_lives_are_the_same(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
        walk.compare()
