"""Cached blocks that somebody is going to hit: kept as long as blocks last.

Two kinds. The hits of a request that waits for admission (queue-informed eviction), and the
prefix that was left to a preempted sequence when its tail was trimmed. Both are holders of kind
EXPECT: their blocks count as available, and are let go, in the order of `drop_one`, when they
are all that is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.admission import AdmissionRequest, most_hits
from kvcache.core import CacheCore, HolderKind
from kvcache.holders import Holders


@dataclass(frozen=True, slots=True)
class _Entry:
    holder_id: int
    group: int


class Expectations:
    """The holders of a core for sequences that are to come, by the id of the sequence."""

    def __init__(self, core: CacheCore, holders: Holders) -> None:
        self._core = core
        self._holders = holders
        self._waiting: dict[int, _Entry] = {}  # in order of age
        self._trimmed: dict[int, _Entry] = {}  # in order of age
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._waiting or self._trimmed)

    def expect(self, request: AdmissionRequest, group: int) -> int:
        """Keeps the hits of a waiting request; answers their tokens."""
        self.end_waiting(request.sequence_id)
        if not request.use_cache:
            return 0
        most = most_hits(request.token_ids, self._holders.block_tokens)
        return self._keep(self._waiting, request, group, request.token_ids, most)

    def trim(self, request: AdmissionRequest, group: int, keep_blocks: int) -> bool:
        """Keeps the leading blocks of a live sequence, as far as they are those of the index.

        They stay expected when the sequence is released. False if there are none.
        """
        sequence_id = request.sequence_id
        tokens = np.frombuffer(self._core.tokens(sequence_id), np.int32)
        table = np.frombuffer(self._core.block_table(sequence_id), np.int32)
        computed = self._core.computed_tokens(sequence_id) // self._holders.block_tokens
        most = min(keep_blocks, computed)  # further ones of the index are not its own
        blocks, _, last = self._core.match(request.namespace, tokens, most)
        if blocks == 0 or table[blocks - 1] != last:
            return False  # the index has others of the same tokens
        return self._keep(self._trimmed, request, group, tokens, blocks) > 0

    def end_waiting(self, sequence_id: int) -> bool:
        """Lets go of the hits of a waiting request; False if nothing was kept."""
        return self._end(self._waiting, sequence_id)

    def end(self, sequence_id: int) -> None:
        """Lets go of all that is kept for a sequence."""
        self._end(self._waiting, sequence_id)
        self._end(self._trimmed, sequence_id)

    def drop_one(self, may_drop: Callable[[int], bool] | None = None) -> bool:
        """Lets go of the least urgent one (of a group that may); False if there is none.

        The newest request comes last to its turn, so its hits go first. The prefixes of trimmed
        sequences go after all of these, that of the last trimmed first.
        """
        for entries in (self._waiting, self._trimmed):
            for sequence_id in reversed(entries):
                if may_drop is None or may_drop(entries[sequence_id].group):
                    self.dropped += 1
                    return self._end(entries, sequence_id)
        return False

    def _keep(
        self,
        entries: dict[int, _Entry],
        request: AdmissionRequest,
        group: int,
        tokens: NDArray[np.int32],
        most_blocks: int,
    ) -> int:
        holder_id, held_tokens = self._holders.hold_cached(
            HolderKind.EXPECT, request.namespace, tokens, most_blocks
        )
        if held_tokens:
            entries[request.sequence_id] = _Entry(holder_id, group)
        return held_tokens

    def _end(self, entries: dict[int, _Entry], sequence_id: int) -> bool:
        entry = entries.pop(sequence_id, None)
        return entry is not None and self._core.release(entry.holder_id)
