"""Small blocks with known contents, for tests of the tiers."""

from __future__ import annotations

import hashlib

import numpy as np

from kvcache import KVDtype, KVLayout
from kvcache.tiers import BlockKey, Fingerprint, Tier, chain_keys

BLOCK_TOKENS = 4
LAYOUT = KVLayout(
    layers=2, kv_heads=1, head_dim=8, block_tokens=BLOCK_TOKENS, dtype=KVDtype.FLOAT32
)
BLOCK_BYTES = LAYOUT.block_bytes
FINGERPRINT = Fingerprint("weights", "rope", LAYOUT).digest
OTHER_FINGERPRINT = Fingerprint("other weights", "rope", LAYOUT).digest


def keys_of(
    count: int,
    *,
    first_token: int = 0,
    namespace: bytes = b"",
    fingerprint: bytes = FINGERPRINT,
) -> list[BlockKey]:
    """Keys of `count` blocks that continue each other."""
    tokens = np.arange(first_token, first_token + count * BLOCK_TOKENS, dtype=np.int32)
    return chain_keys(fingerprint, namespace, tokens, BLOCK_TOKENS)


def contents(key: BlockKey, version: int = 0) -> bytes:
    """What a block of this key contains: bytes that follow from the key alone."""
    seed = hashlib.sha256(key.digest + version.to_bytes(4, "little")).digest()
    return (seed * (BLOCK_BYTES // len(seed) + 1))[:BLOCK_BYTES]


def buffers(count: int) -> list[memoryview]:
    """Room to read blocks into."""
    return [memoryview(bytearray(BLOCK_BYTES)) for _ in range(count)]


def put_all(tier: Tier, keys: list[BlockKey]) -> None:
    """Puts a block for each key."""
    for key in keys:
        assert tier.put(key, contents(key))


def read(tier: Tier, keys: list[BlockKey]) -> int:
    """How many leading blocks are read; their bytes are right."""
    into = buffers(len(keys))
    count = tier.read(keys, into)
    assert [bytes(b) for b in into[:count]] == [contents(key) for key in keys[:count]]
    return count
