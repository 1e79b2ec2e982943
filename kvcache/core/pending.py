"""Prefixes that are being computed or loaded now, so that a second request can wait for them."""

from __future__ import annotations

from kvcache.core.sequence import Holder


class PendingPrefixes:
    """The publishing holders that have not computed what they began with, by first block."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._groups: dict[tuple[bytes, bytes], dict[int, Holder]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def is_pending(self, holder: Holder) -> bool:
        """Whether the holder has been added and not been discarded."""
        return holder.holder_id in self._groups.get(self._key_of(holder), {})

    def add(self, holder: Holder) -> None:
        """Notes a holder that begins; those that will publish no block are left out."""
        if self.is_worth_waiting_for(holder):
            group = self._groups.setdefault(self._key_of(holder), {})
            group[holder.holder_id] = holder

    def is_worth_waiting_for(self, holder: Holder) -> bool:
        """Whether the holder is still to publish blocks of what it began with."""
        is_computing = holder.computed_tokens < holder.prompt_tokens
        return holder.publish and is_computing and holder.prompt_tokens >= self._block_tokens

    def discard(self, holder: Holder) -> None:
        """It has computed what it began with, or it is gone."""
        key = self._key_of(holder)
        group = self._groups.get(key)
        if group is not None:
            group.pop(holder.holder_id, None)
            if not group:
                del self._groups[key]

    def longest(self, namespace: bytes, tokens: bytes, max_blocks: int) -> int:
        """Most leading whole blocks, up to `max_blocks`, that `tokens` share with one of them."""
        first = tokens[: 4 * self._block_tokens]
        group = self._groups.get((namespace, first), {})
        return max(
            (self._common(holder, tokens, max_blocks) for holder in group.values()), default=0
        )

    def _common(self, holder: Holder, tokens: bytes, max_blocks: int) -> int:
        size = 4 * self._block_tokens
        most = min(max_blocks, holder.prompt_tokens // self._block_tokens, len(tokens) // size)
        for number in range(most):
            same = holder.block_of_tokens(number, self._block_tokens)
            if tokens[number * size : (number + 1) * size] != same:
                return number
        return most

    def _key_of(self, holder: Holder) -> tuple[bytes, bytes]:
        return holder.namespace, holder.block_of_tokens(0, self._block_tokens)
