"""What the blocks on the device contain, by their keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcache.tiers.keys import ROOT, BlockKey, chain_keys, require_fingerprint
from kvcache.tokens import token_array


class DeviceKeys:
    """The key of every block in the index of a manager, kept by the events of that index."""

    def __init__(self, fingerprint: bytes, block_tokens: int) -> None:
        self._fingerprint = require_fingerprint(fingerprint)
        self._block_tokens = block_tokens
        self._keys: dict[int, BlockKey] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[int, BlockKey]]:
        """Blocks and keys, each after the block that it continues."""
        return iter(self._keys.items())

    def stored(
        self,
        namespace: bytes,
        parent: int | None,
        blocks: Sequence[int],
        token_ids: Sequence[int],
    ) -> None:
        """Notes blocks that continue each other."""
        before = ROOT if parent is None else self._keys[parent].digest
        tokens = token_array(token_ids)
        keys = chain_keys(self._fingerprint, namespace, tokens, self._block_tokens, before)
        self._keys.update(zip(blocks, keys, strict=True))

    def removed(self, block: int) -> BlockKey:
        """Forgets a block; answers its key."""
        return self._keys.pop(block)

    def cleared(self, namespace: bytes | None) -> None:
        """Forgets the blocks of a namespace (None: all)."""
        if namespace is None:
            self._keys.clear()
            return
        self._keys = {b: key for b, key in self._keys.items() if key.namespace != namespace}

    def moved(self, moves: Sequence[tuple[int, int]]) -> None:
        """Follows blocks to their new ids; each stays behind the block that it continues."""
        destinations = dict(moves)
        self._keys = {destinations.get(b, b): key for b, key in self._keys.items()}

    def of(self, blocks: Sequence[int]) -> list[BlockKey] | None:
        """The keys of these blocks, or None if one of them is not in the index."""
        keys = [self._keys.get(block) for block in blocks]
        known = [key for key in keys if key is not None]
        return known if len(known) == len(keys) else None
