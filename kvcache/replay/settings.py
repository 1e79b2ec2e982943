"""What a replay assumes: the pool, the batch, and what a step costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvcache.core.eviction import PolicyName
from kvcache.errors import InvalidArgumentError
from kvcache.replay.trace import MOONCAKE_BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """A simulated engine.

    A step computes one token for every decoding sequence and shares the rest of its token
    budget among prefills. It takes `decode_step_seconds`, and on top the prefilled tokens
    divided by `prefill_tokens_per_second`.
    """

    num_blocks: int  # of the pool, without the null block
    block_tokens: int = 16
    policy: PolicyName = "reuse-aware"  # which cached blocks are evicted
    trace_block_tokens: int = MOONCAKE_BLOCK_TOKENS  # behind one hash id of the trace
    max_running_sequences: int = 64
    max_step_tokens: int = 2048
    prefill_tokens_per_second: float = 10_000.0
    decode_step_seconds: float = 0.025
    load_line: float = 0.9  # share of the pool above which no sequence is admitted
    speed: float = 1.0  # the requests arrive this many times as fast as they did

    def __post_init__(self) -> None:
        for field in (
            "num_blocks",
            "block_tokens",
            "trace_block_tokens",
            "max_running_sequences",
        ):
            if getattr(self, field) < 1:
                raise InvalidArgumentError(field, getattr(self, field), "at least 1")
        if self.max_step_tokens <= self.max_running_sequences:
            # With one token a decoding sequence, none would be left to prefill with.
            raise InvalidArgumentError(
                "max_step_tokens",
                self.max_step_tokens,
                f"more than max_running_sequences ({self.max_running_sequences})",
            )
        for field in ("prefill_tokens_per_second", "decode_step_seconds", "speed"):
            value = getattr(self, field)
            if not 0 < value < math.inf:
                raise InvalidArgumentError(field, value, "a finite number above 0")
        if not 0 < self.load_line <= 1:
            raise InvalidArgumentError("load_line", self.load_line, "above 0 and at most 1")

    @property
    def headroom_blocks(self) -> int:
        """Blocks above the load line: left to the growth of running sequences."""
        return self.num_blocks - math.floor(self.num_blocks * self.load_line)
