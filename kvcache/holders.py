"""Starts holders of cached blocks that are no sequences."""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

from kvcache.admission import SEQUENCE_ID_LIMIT
from kvcache.core import CacheCore, HolderKind
from kvcache.errors import OutOfBlocksError


class Holders:
    """Gives out the ids of pins, leases and expectations, and begins those of cached blocks."""

    def __init__(self, core: CacheCore, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._core = core
        self._ids = count(SEQUENCE_ID_LIMIT)

    def new_id(self) -> int:
        """An id that no holder has or had."""
        return next(self._ids)

    def hold_cached(
        self, kind: HolderKind, namespace: bytes, tokens: NDArray[np.int32], max_blocks: int
    ) -> tuple[int, int]:
        """Lets a new holder have what is cached of a prefix, up to `max_blocks`.

        Answers its id and the tokens held; 0: nothing is cached, or what others are guaranteed
        forbids to keep it from eviction, and nothing has begun. Does not count as a reuse.
        """
        holder_id = self.new_id()
        match = self._core.match(namespace, tokens, max_blocks)
        held_tokens = match[0] * self.block_tokens
        if held_tokens:
            group = self._core.namespace_group(namespace)
            held = tokens[:held_tokens]
            try:
                self._core.begin(holder_id, namespace, held, False, match, False, kind, group, 0)
            except OutOfBlocksError:
                return holder_id, 0
        return holder_id, held_tokens
