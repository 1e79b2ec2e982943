"""What the engine knows about one sequence."""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from kvcache.tokens import token_array
from service.engine.messages import Finished, FinishReason, SequenceSpec, TokenLogprob
from service.engine.sampler import SamplerState


class SequenceState(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"  # never ran in this engine; holds no blocks
    PREFILL = "prefill"  # admitted: holds blocks for all its tokens, not all computed
    DECODE = "decode"  # all its tokens are computed but the last one
    PREEMPTED = "preempted"  # lost its blocks to others; waits to be admitted again
    FINISHED = "finished"

    @property
    def is_queued(self) -> bool:
        """Whether it waits for admission."""
        return self in (SequenceState.WAITING, SequenceState.PREEMPTED)


class Sequence:
    """One candidate of a request: its tokens, progress, sampling state and times.

    Tokens are numbered from the first prompt token on. `computed_tokens` of them have K and
    V in the pool. All seconds are those of the engine's monotonic clock.
    """

    __slots__ = (
        "_tokens",
        "cached_tokens",
        "computed_high_water",
        "computed_step",
        "computed_tokens",
        "num_tokens",
        "order",
        "preempted_at_seconds",
        "preempted_seconds",
        "preemptions",
        "produced_since_admission",
        "prompt_logprobs",
        "recomputed_tokens",
        "sampler",
        "scheduled_seconds",
        "skips",
        "spec",
        "state",
    )

    def __init__(self, spec: SequenceSpec, order: int) -> None:
        self.spec = spec
        self.order = order  # of arrival in this engine, decides between equal arrival times
        self.state = SequenceState.WAITING
        self.sampler = SamplerState(spec)
        known = [*spec.prompt_ids, *spec.output_ids]
        self._tokens = np.empty(len(known) + min(spec.max_tokens, 256) + 1, np.int32)
        self._tokens[: len(known)] = token_array(known)
        self.num_tokens = len(known)
        self.computed_tokens = 0
        self.computed_high_water = 0
        self.computed_step = 0  # number of the last step in which a token of it was computed
        self.cached_tokens = 0  # of the prompt, at the first admission
        self.recomputed_tokens = 0
        self.preemptions = 0
        self.produced_since_admission = 0
        self.skips = 0  # sequences admitted past this one while it was too big
        self.prompt_logprobs: list[TokenLogprob] = []
        self.scheduled_seconds = 0.0
        self.preempted_at_seconds = 0.0
        self.preempted_seconds = 0.0

    def __repr__(self) -> str:
        return (
            f"Sequence({self.sequence_id}, {self.state.value}, tokens={self.num_tokens}, "
            f"computed={self.computed_tokens}, preemptions={self.preemptions})"
        )

    @property
    def sequence_id(self) -> int:
        """The id the front gave it."""
        return self.spec.sequence_id

    @property
    def priority(self) -> int:
        """Its rank: higher goes first."""
        return self.spec.priority

    @property
    def progressed(self) -> bool:
        """Whether it was never preempted, or has produced a token since it came back."""
        return not self.preemptions or self.produced_since_admission > 0

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Prompt and output tokens, a view."""
        return self._tokens[: self.num_tokens]

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.spec.prompt_ids)

    @property
    def output_tokens(self) -> int:
        """Length of the output, the ids from before an engine death included."""
        return self.num_tokens - len(self.spec.prompt_ids)

    @property
    def remaining_tokens(self) -> int:
        """Known tokens whose K and V are still to be computed."""
        return self.num_tokens - self.computed_tokens

    @property
    def last_token_id(self) -> int:
        """The newest token."""
        return int(self._tokens[self.num_tokens - 1])

    def append(self, token_id: int) -> None:
        """Adds an output token."""
        if self.num_tokens == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.num_tokens] = token_id
        self.num_tokens += 1
        self.produced_since_admission += 1

    @property
    def missing_prompt_logprobs(self) -> range:
        """Positions whose logits are still wanted as prompt logprobs.

        Position p tells the logprob of prompt token p + 1. They go out with the first
        token, so a sequence that already has output wants none.
        """
        if self.spec.sampling.prompt_logprobs is None or self.output_tokens:
            return range(0)
        return range(len(self.prompt_logprobs), self.prompt_tokens - 1)

    def take_prompt_logprobs(self) -> list[TokenLogprob] | None:
        """All prompt logprobs, once, with the first output token of the sequence."""
        if self.spec.sampling.prompt_logprobs is None or self.output_tokens != 1:
            return None
        complete, self.prompt_logprobs = self.prompt_logprobs, []
        return complete

    @property
    def may_hit_cache(self) -> bool:
        """Whether blocks may come from the prefix index: a hit has no logits to tell."""
        return self.spec.use_prefix_cache and not self.missing_prompt_logprobs

    def admitted(self, cached_tokens: int, now_seconds: float) -> None:
        """It holds blocks for all its tokens now; `cached_tokens` need no computation."""
        if self.state is SequenceState.PREEMPTED:
            self.preempted_seconds += now_seconds - self.preempted_at_seconds
        else:
            self.cached_tokens = min(cached_tokens, self.prompt_tokens)
            self.scheduled_seconds = now_seconds
        self.state = SequenceState.PREFILL
        self.computed_tokens = cached_tokens
        self.produced_since_admission = 0
        self.skips = 0

    def preempted(self, now_seconds: float) -> None:
        """It lost its blocks; its tokens and sampling state stay."""
        self.state = SequenceState.PREEMPTED
        self.preemptions += 1
        self.preempted_at_seconds = now_seconds
        self.computed_tokens = 0

    def computed(self, tokens: int) -> None:
        """K and V of the next `tokens` tokens are written."""
        end = self.computed_tokens + tokens
        self.recomputed_tokens += max(0, min(end, self.computed_high_water) - self.computed_tokens)
        self.computed_tokens = end
        self.computed_high_water = max(self.computed_high_water, end)

    def finish_reason(self, max_context_tokens: int) -> FinishReason | None:
        """Why the sequence is over with its newest token; None while it goes on.

        A sequence that reaches `max_tokens` and the context limit at once got all it asked
        for: MAX_TOKENS.
        """
        spec = self.spec
        output_tokens = self.output_tokens
        if output_tokens:
            if self.last_token_id in spec.eos_ids:
                return FinishReason.EOS
            if self.last_token_id in spec.stop_ids:
                return FinishReason.STOP
        if output_tokens >= spec.max_tokens:
            return FinishReason.MAX_TOKENS
        if self.num_tokens >= max_context_tokens:
            return FinishReason.CONTEXT_LENGTH
        return None

    def finished(self, reason: FinishReason, now_seconds: float) -> Finished:
        """Ends the sequence; the message that tells the front."""
        if self.state is SequenceState.PREEMPTED:
            self.preempted_seconds += now_seconds - self.preempted_at_seconds
        self.state = SequenceState.FINISHED
        by_token = reason in (FinishReason.EOS, FinishReason.STOP)
        return Finished(
            sequence_id=self.sequence_id,
            reason=reason,
            stop_token_id=self.last_token_id if by_token else None,
            recomputed_tokens=self.recomputed_tokens,
            preemptions=self.preemptions,
            preempted_seconds=self.preempted_seconds,
        )
