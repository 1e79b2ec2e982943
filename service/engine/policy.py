"""Pure rules of the scheduler: who goes first, and how much of a step each may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from service.engine.request import Sequence


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The numbers the scheduler keeps to; see `EngineSettings` for their meaning."""

    max_running_sequences: int
    max_step_tokens: int
    prefill_chunk_tokens: int
    headroom_blocks: int
    max_skips: int
    prompt_logprob_rows: int

    @property
    def running_sequences(self) -> int:
        """Most sequences in the batch.

        One less than the token budget: when all the others decode, the last one still has
        tokens to prefill with, so neither phase can starve the other.
        """
        return max(1, min(self.max_running_sequences, self.max_step_tokens - 1))


def headroom_blocks(usable_blocks: int, load_line: float) -> int:
    """Blocks above the load line: admission leaves them to the growth of running sequences."""
    return usable_blocks - math.floor(usable_blocks * load_line)


@dataclass(slots=True)
class StepBudget:
    """What is left of a step while it is being filled."""

    tokens: int
    chunk_tokens: int
    logprob_rows: int  # prompt logprobs cost a row of logits [V] each

    def take(self, start: int, remaining: int, logprob_positions: range) -> int:
        """Takes a chunk of a sequence out of the budget; returns its tokens, perhaps 0.

        Args:
            start: position of the first token to compute.
            remaining: known tokens from there on.
            logprob_positions: positions whose logits are wanted for prompt logprobs.
        """
        count = min(remaining, self.chunk_tokens, self.tokens)
        rows = _overlap(start, count, logprob_positions)
        if len(rows) > self.logprob_rows:
            count = rows.start + self.logprob_rows - start
            rows = _overlap(start, count, logprob_positions)
        self.tokens -= count
        self.logprob_rows -= len(rows)
        return count

    def give_back(self, chunk: Chunk) -> None:
        """Undoes `take` for a chunk that is not computed after all."""
        self.tokens += chunk.count
        self.logprob_rows += len(chunk.logprob_positions)


def _overlap(start: int, count: int, positions: range) -> range:
    return range(max(start, positions.start), min(start + count, positions.stop))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence that are computed in one step."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + self.count

    @property
    def wants_token(self) -> bool:
        """Whether it reaches the last known token, so that the next one can be chosen."""
        return self.end == self.sequence.num_tokens

    @property
    def logprob_positions(self) -> range:
        """The positions inside it whose logits are wanted for prompt logprobs."""
        return _overlap(self.start, self.count, self.sequence.missing_prompt_logprobs)
