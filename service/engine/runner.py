"""The seam between scheduling and arithmetic.

A `Runner` owns weights and the memory of the KV pool; it computes one varlen batch per
call and knows nothing of requests, prefixes or policies. Everything crosses this seam as
numpy arrays, so that a runner can be torch, a native library or a fake of the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step: S sequences with T query tokens in all, packed without padding.

    Sequence s owns the flat tokens `query_starts[s]:query_starts[s + 1]`, the last ones of
    its context. A decoding sequence has one query token, a prefill chunk has several.
    """

    token_ids: NDArray[np.int32]  # [T]
    positions: NDArray[np.int32]  # [T]
    slots: NDArray[np.int64]  # [T], block * block_tokens + offset: where K and V go
    query_starts: NDArray[np.int32]  # [S + 1]
    context_lens: NDArray[np.int32]  # [S], tokens attended to, this step's included
    block_tables: NDArray[np.int32]  # [S, W], padded with the null block 0
    logit_rows: NDArray[np.int32]  # [R], flat tokens whose next-token logits are wanted


class Runner(Protocol):
    """Computes steps for one model on one device."""

    @property
    def vocab_size(self) -> int:
        """Number of logits per row."""
        ...

    def forward(self, batch: StepBatch) -> NDArray[np.float32]:
        """Writes K and V of all T tokens to their slots, attends, answers logits [R, V].

        The array is the caller's until the next call. Logits are finite for finite weights.

        Raises DeviceOutOfMemoryError where an allocation failed, with slots written or not and
        nothing else changed, and DeviceLostError where this process cannot compute any more.
        """
        ...

    def step_bytes(self, tokens: int, logit_rows: int, context_tokens: int) -> int:
        """What a step takes of the device's memory at most, beyond weights and KV pool.

        It has `tokens` of sequences of which the longest has `context_tokens`, and each of
        which wants at least one of the `logit_rows` rows. Monotonic in all three.
        """
        ...
