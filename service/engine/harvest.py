"""What comes out of a step that was computed: published blocks, chosen tokens, ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvcache import CacheManager
from service.engine.live_sequences import LiveSequences
from service.engine.messages import Output, Prefilled
from service.engine.policy import Chunk
from service.engine.request import Sequence, SequenceState
from service.engine.sampler import sample, token_logprob, unusable_logits
from service.engine.scheduler import Scheduler


@dataclass(slots=True)
class Harvest:
    """Of one step."""

    outputs: list[Output] = field(default_factory=list)
    # What was computed of tokens that the engine did not choose just now.
    prefilled: list[Prefilled] = field(default_factory=list)

    @property
    def prefill_tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.prefilled)


class Harvester:
    """Turns the logits of a step into outputs."""

    def __init__(
        self,
        manager: CacheManager,
        scheduler: Scheduler,
        live: LiveSequences,
        max_context_tokens: int,
    ) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._live = live
        self._max_context_tokens = max_context_tokens

    def take(self, chunks: list[Chunk], logits: NDArray[np.float32], now_seconds: float) -> Harvest:
        """Publishes the chunks and chooses tokens where a chunk reached the end."""
        harvest = Harvest()
        last_rows, choosing = [], []
        next_row = 0
        for chunk in chunks:
            first_row = next_row
            token_row = first_row + len(chunk.logprob_positions)
            next_row = token_row + chunk.wants_token
            if chunk.sequence.state is SequenceState.PREFILL:
                prefilled = Prefilled(chunk.sequence.sequence_id, chunk.count, now_seconds)
                harvest.prefilled.append(prefilled)
            if bad_values := unusable_logits(logits[first_row:next_row]):
                self._fail(chunk, bad_values)
                continue
            _take_prompt_logprobs(chunk, logits[first_row:token_row])
            self._scheduler.computed(chunk)
            if chunk.wants_token:
                last_rows.append(token_row)
                choosing.append(chunk.sequence)
        if choosing:
            picked = logits if len(last_rows) == len(logits) else logits[last_rows]
            harvest.outputs = self._choose(choosing, picked, now_seconds)
        return harvest

    def _choose(
        self, sequences: list[Sequence], logits: NDArray[np.float32], now_seconds: float
    ) -> list[Output]:
        outputs = []
        chosen = sample(logits, [sequence.sampler for sequence in sequences])
        for sequence, sampled in zip(sequences, chosen, strict=True):
            sequence.append(sampled.token_id)
            outputs.append(
                Output(
                    sequence_id=sequence.sequence_id,
                    token_ids=[sampled.token_id],
                    logprobs=None if sampled.logprob is None else [sampled.logprob],
                    prompt_logprobs=sequence.take_prompt_logprobs(),
                )
            )
            reason = sequence.finish_reason(self._max_context_tokens)
            if reason is not None:
                self._scheduler.remove(sequence)
                self._live.finish(sequence, reason, now_seconds)
        return outputs

    def _fail(self, chunk: Chunk, bad_values: int) -> None:
        """Ends a sequence whose logits are not finite, and nobody else.

        Its K and V may be what is broken, some of them published by earlier steps. Nobody
        can tell which, so its whole namespace leaves the prefix index: else the next
        request with this prefix would fail on them again.
        """
        sequence = chunk.sequence
        self._scheduler.remove(sequence)
        self._manager.flush(sequence.spec.namespace)
        self._live.fail(
            sequence,
            f"{bad_values} logits after token {chunk.end} of {sequence.num_tokens} are not finite",
        )


def _take_prompt_logprobs(chunk: Chunk, rows: NDArray[np.float32]) -> None:
    """Keeps the prompt logprobs of a chunk; a row [V] for each of its positions."""
    sequence = chunk.sequence
    alternatives = sequence.spec.sampling.prompt_logprobs
    if alternatives is None:
        return
    sequence.prompt_logprobs.extend(
        token_logprob(row, int(sequence.token_ids[position + 1]), alternatives)
        for row, position in zip(rows, chunk.logprob_positions, strict=True)
    )
