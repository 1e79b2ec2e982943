"""An engine whose pool changes its size, with all K and V compared after every step.

The model's KV is a hash (see `engine_fakes`) in a real arena behind real block tables. Every
block that nobody may read is overwritten. A block behind the end of the pool has no memory:
touching it would end the test run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from engine_fakes import EngineHarness, kv_of

from kvcache.errors import UnknownSequenceError
from service.engine.messages import Resize, Resized, SequenceSpec, ShrinkPolicy, StepReport

WAIT, PREEMPT = ShrinkPolicy.WAIT, ShrinkPolicy.PREEMPT
BLOCK_TOKENS = 4


class ResizeHarness(EngineHarness):
    """Checks the KV of the whole pool after every step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"block_tokens": BLOCK_TOKENS, "load_line": 1.0, **options})
        self.specs: dict[int, SequenceSpec] = {}
        self.kv = np.frombuffer(self.runner.arena.buffer, np.uint64)

    def submit(self, *specs: SequenceSpec) -> None:
        self.specs.update({spec.sequence_id: spec for spec in specs})
        self.core.submit(specs)

    def resize(
        self, blocks: int, policy: ShrinkPolicy = PREEMPT, limit_seconds: float = 1e6
    ) -> int:
        """Orders it; answers the id that its end will have."""
        call_id = next(_call_ids)
        self.core.resize(Resize(call_id, blocks, policy, limit_seconds))
        return call_id

    def end_of(self, call_id: int) -> Resized:
        (end,) = (resized for resized in self.resized if resized.call_id == call_id)
        return end

    def step(self) -> StepReport:
        report = super().step()
        arena, manager = self.runner.arena, self.manager
        assert arena.num_blocks == manager.usable_blocks + 1 == report.stats.blocks_total + 1
        readable = self._check_kv()
        assert all(0 < block < arena.num_blocks for block in readable)
        self.runner.poison(set(range(1, arena.num_blocks)) - readable)
        return report

    def assert_undisturbed(self) -> None:
        """Every request said what it would have said alone."""
        for spec in self.specs.values():
            assert self.output(spec.sequence_id) == self.oracle(spec), spec.sequence_id
        assert self.core.stats().blocks_held == 0

    def _live_blocks(self) -> Iterator[tuple[int, int, list[int]]]:
        """Block, position of its first token and computed tokens of all live sequences."""
        for spec in self.specs.values():
            try:
                computed = self.manager.computed_tokens(spec.sequence_id)
            except UnknownSequenceError:
                continue
            tokens = [*spec.prompt_ids, *spec.output_ids, *self.output(spec.sequence_id)]
            for index, block in enumerate(self.manager.block_table(spec.sequence_id).tolist()):
                first = index * self.manager.block_tokens
                yield block, first, tokens[:computed][first : first + self.manager.block_tokens]

    def _cached_blocks(self) -> Iterator[tuple[int, int, list[int]]]:
        """The same of all blocks of the index."""
        size = self.manager.block_tokens
        ends = {None: 0}
        for stored in self.manager.snapshot().runs:
            start = ends[stored.parent]
            for index, block in enumerate(stored.blocks):
                own = stored.token_ids[index * size : (index + 1) * size]
                yield block, start + index * size, list(own)
                ends[block] = start + (index + 1) * size

    def _check_kv(self) -> set[int]:
        """Compares what can be read with what it should be, token by token; answers its blocks."""
        blocks = [*self._live_blocks(), *self._cached_blocks()]
        size = self.manager.block_tokens
        slots = [block * size + i for block, _, tokens in blocks for i in range(len(tokens))]
        positions = [first + i for _, first, tokens in blocks for i in range(len(tokens))]
        tokens = [token for _, _, tokens in blocks for token in tokens]
        expected = kv_of(np.array(tokens, np.int32), np.array(positions, np.int32))
        np.testing.assert_array_equal(self.kv[np.array(slots, np.int64)], expected)
        return {block for block, _, _ in blocks}


_call_ids = itertools.count(1)


def prompt(seed: int, tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, tokens).tolist()
