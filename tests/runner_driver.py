"""Drives a Runner without scheduler and cache manager: sequences with scattered blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.engine.runner import Runner, StepBatch


@dataclass
class Drive:
    """One sequence: `tokens` known so far, the first `computed` of them are in the pool."""

    tokens: list[int]
    blocks: list[int]
    computed: int = 0


@dataclass
class RunnerDriver:
    """Hands out blocks in random order and builds packed batches from (sequence, chunk) pairs."""

    runner: Runner
    num_blocks: int
    block_tokens: int
    seed: int = 0
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        order = np.random.default_rng(self.seed).permutation(np.arange(1, self.num_blocks))
        self._free = order.tolist()

    def sequence(self, tokens: list[int], shared: Drive | None = None, prefix: int = 0) -> Drive:
        """A new sequence, whose first `prefix` tokens (whole blocks) lie in blocks of `shared`."""
        assert prefix % self.block_tokens == 0
        blocks = shared.blocks[: prefix // self.block_tokens] if shared else []
        return Drive(list(tokens), list(blocks), prefix)

    def step(self, work: list[tuple[Drive, int]], all_rows: bool = False) -> NDArray[np.float32]:
        """Computes the next `chunk` tokens of each sequence: logits of its last or of all."""
        for drive, chunk in work:
            while len(drive.blocks) * self.block_tokens < drive.computed + chunk:
                drive.blocks.append(self._free.pop())
        spans = [(d, np.arange(d.computed, d.computed + chunk)) for d, chunk in work]
        width = max(len(d.blocks) for d, _ in work)
        starts = np.cumsum([0] + [chunk for _, chunk in work]).astype(np.int32)
        batch = StepBatch(
            token_ids=np.concatenate([np.array(d.tokens)[at] for d, at in spans]).astype(np.int32),
            positions=np.concatenate([at for _, at in spans]).astype(np.int32),
            slots=np.concatenate(
                [
                    np.array(d.blocks)[at // self.block_tokens] * self.block_tokens
                    + at % self.block_tokens
                    for d, at in spans
                ]
            ).astype(np.int64),
            query_starts=starts,
            context_lens=np.array([d.computed + chunk for d, chunk in work], np.int32),
            block_tables=np.array(
                [d.blocks + [0] * (width - len(d.blocks)) for d, _ in work], np.int32
            ),
            logit_rows=np.arange(starts[-1], dtype=np.int32) if all_rows else starts[1:] - 1,
        )
        logits = self.runner.forward(batch)
        assert np.isfinite(logits).all()
        for drive, chunk in work:
            drive.computed += chunk
        return logits

    def generate(self, drives: list[Drive], new_tokens: int, chunk_tokens: int) -> list[list[int]]:
        """Greedy ids of all; prompts are computed in chunks, mixed with decoding neighbours."""
        lengths = [len(drive.tokens) for drive in drives]
        while True:
            live = [
                drive
                for drive, length in zip(drives, lengths, strict=True)
                if len(drive.tokens) < length + new_tokens
            ]
            if not live:
                return [d.tokens[n:] for d, n in zip(drives, lengths, strict=True)]
            work = [(d, min(chunk_tokens, len(d.tokens) - d.computed)) for d in live]
            logits = self.step(work)
            for (drive, _), row in zip(work, logits, strict=True):
                if drive.computed == len(drive.tokens):
                    drive.tokens.append(int(row.argmax()))
