"""The policies against a model that looks at every block: same choices, block by block."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache import AdmissionRequest, CacheManager, Fits
from kvcache.eviction import PolicyName

Prompt = tuple[int, ...]
WEIGHT, PROTECTED_SHARE = 2, 0.25


@dataclass
class Block:
    """A cached block; its key is all tokens up to its end."""

    holders: int = 1
    reused: bool = False
    released_at: int = 0
    order: int = 0


class Model:
    """Blocks of one token. Everything is looked for by going through all of it."""

    def __init__(self, pool: int, policy: PolicyName) -> None:
        self.pool = pool
        self.policy = policy
        self.blocks: dict[Prompt, Block] = {}
        self.private = 0  # blocks of live sequences outside the index: last tokens are none here
        self.now = 0
        self.orders = itertools.count()

    def cached(self, prompt: Prompt) -> int:
        ends = range(1, len(prompt) + 1)
        return sum(1 for _ in itertools.takewhile(lambda end: prompt[:end] in self.blocks, ends))

    def evictable(self) -> int:
        return sum(block.holders == 0 for block in self.blocks.values())

    def fits(self, prompt: Prompt) -> bool:
        hits = self.hits(prompt)
        own = sum(self.blocks[prompt[:end]].holders == 0 for end in range(1, hits + 1))
        available = self.pool - len(self.blocks) + self.evictable() - own
        return len(prompt) - hits <= available

    def hits(self, prompt: Prompt) -> int:
        return min(self.cached(prompt), len(prompt) - 1)

    def start(self, prompt: Prompt, *, resumed: bool) -> None:
        hits = self.hits(prompt)
        path = [self.blocks[prompt[:end]] for end in range(1, hits + 1)]
        if path and path[-1].holders == 0 and not resumed:
            for block in path:
                block.reused = True
        for block in path:
            block.holders += 1
        while self.pool - len(self.blocks) < len(prompt) - hits:
            del self.blocks[self.victim()]
        for end in range(hits + 1, len(prompt) + 1):
            # The last block may be known: then the new one is a duplicate and freed.
            if prompt[:end] in self.blocks:
                self.blocks[prompt[:end]].holders += 1
            else:
                self.blocks[prompt[:end]] = Block()

    def release(self, prompt: Prompt) -> None:
        self.now += 1
        for end in range(len(prompt), 0, -1):
            block = self.blocks[prompt[:end]]
            block.holders -= 1
            if block.holders == 0:
                block.released_at, block.order = self.now, next(self.orders)

    def victim(self) -> Prompt:
        idle = sorted(
            (key for key, block in self.blocks.items() if block.holders == 0),
            key=lambda key: self.blocks[key].order,
        )
        if self.policy == "lru":
            return idle[0]
        once = [key for key in idle if not self.blocks[key].reused]
        reused = [key for key in idle if self.blocks[key].reused]
        if not once or not reused:
            return idle[0]
        is_protected = len(reused) <= min(int(PROTECTED_SHARE * self.pool), len(once))
        idle_once = self.now - self.blocks[once[0]].released_at
        idle_reused = self.now - self.blocks[reused[0]].released_at
        return reused[0] if idle_reused > WEIGHT * idle_once and not is_protected else once[0]


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
operations = st.lists(
    st.tuples(prompts, st.integers(0, 3), st.booleans()), min_size=1, max_size=120
)


@pytest.mark.parametrize("policy", ["reuse-aware", "lru"])
@settings(deadline=None, max_examples=150)
@given(operations, st.integers(7, 24))
def test_the_index_gives_up_the_blocks_that_the_model_does(
    policy: PolicyName, steps: list[tuple[Prompt, int, bool]], pool: int
) -> None:
    """A step starts a prompt and then ends up to three of the oldest live ones."""
    model = Model(pool, policy)
    manager = CacheManager(pool + 1, 1, policy=policy)
    live: list[tuple[int, Prompt]] = []
    for number, (prompt, ends, resumed) in enumerate(steps):
        request = AdmissionRequest(number, np.array(prompt, np.int32), b"", resumed=resumed)
        answer = manager.admit(request)
        assert isinstance(answer, Fits) == model.fits(prompt)
        if isinstance(answer, Fits):
            model.start(prompt, resumed=resumed)
            manager.begin(answer)
            manager.commit(number, len(prompt))
            live.append((number, prompt))
        for sequence, old in live[:ends]:
            model.release(old)
            manager.release(sequence)
        del live[:ends]
        manager.audit()
        stats = manager.stats()
        assert (stats.cached, stats.cached + stats.held) == (model.evictable(), len(model.blocks))
        for known, _, _ in steps:
            wanted = np.array([*known, -1], np.int32)
            assert manager.lookup(b"", wanted) == model.cached(known)
