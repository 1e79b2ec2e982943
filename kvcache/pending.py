"""Prefixes that are being computed now, so that a second request can wait for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcache.sequence import LiveSequence


class PendingPrefixes:
    """The publishing sequences in prefill, by namespace and first block."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._groups: dict[tuple[bytes, bytes], dict[int, LiveSequence]] = {}

    def add(self, sequence: LiveSequence) -> None:
        """Notes a sequence that starts its prefill; those that publish no block are left out."""
        if sequence.publish and sequence.prompt_tokens >= self._block_tokens:
            group = self._groups.setdefault(self._key_of(sequence), {})
            group[sequence.sequence_id] = sequence

    def discard(self, sequence: LiveSequence) -> None:
        """Its prefill is done, or it is gone."""
        key = self._key_of(sequence)
        group = self._groups.get(key)
        if group is not None:
            group.pop(sequence.sequence_id, None)
            if not group:
                del self._groups[key]

    def longest(self, namespace: bytes, tokens: NDArray[np.int32], max_blocks: int) -> int:
        """Most leading whole blocks, up to `max_blocks`, that `tokens` share with a prefill."""
        group = self._groups.get((namespace, tokens[: self._block_tokens].tobytes()), {})
        return max(
            (self._common_blocks(sequence, tokens, max_blocks) for sequence in group.values()),
            default=0,
        )

    def _common_blocks(
        self, sequence: LiveSequence, tokens: NDArray[np.int32], max_blocks: int
    ) -> int:
        blocks = min(max_blocks, sequence.prompt_tokens // self._block_tokens)
        size = blocks * self._block_tokens
        differs = sequence.tokens.view[:size] != tokens[:size]
        first = int(differs.argmax())
        return first // self._block_tokens if differs[first] else blocks

    def _key_of(self, sequence: LiveSequence) -> tuple[bytes, bytes]:
        return sequence.namespace, sequence.tokens.view[: self._block_tokens].tobytes()
