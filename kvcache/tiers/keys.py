"""The content address of a block."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcache.errors import InvalidArgumentError
from kvcache.layout import KVLayout
from kvcache.namespace import framed

FORMAT_VERSION = 1  # of keys and entries: whoever changes either counts it up

DIGEST_BYTES = 32
ROOT = bytes(DIGEST_BYTES)  # in place of the parent of a first block


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All that makes the same tokens give other bytes in a block.

    `weights` identifies the weights by their contents, such as the digest of their file, and
    the adapter and the tensor-parallel rank where there is one: a rank has its part of the
    heads only. `rope` names every parameter of the rotation. Names of files or of models
    identify nothing: that mistake lets a cache on disk outlive the weights it belongs to.
    """

    weights: str
    rope: str
    layout: KVLayout  # the element type included

    @property
    def digest(self) -> bytes:
        """32 bytes that stand for it in keys and entries."""
        *shape, dtype = astuple(self.layout)
        fields = (self.weights, self.rope, *map(str, shape), dtype.value, str(FORMAT_VERSION))
        return hashlib.sha256(framed(field.encode() for field in fields)).digest()


class BlockKey(NamedTuple):
    """Names one block by its contents, and says what these are.

    A store finds it by `digest` and compares the rest: a tuple, because a cache keeps one for
    every block on the device and the garbage collector passes over tuples of bytes.
    """

    digest: bytes
    parent: bytes  # digest of the block before it; ROOT: it is a first one
    namespace: bytes
    tokens: bytes  # of this block, little-endian int32


def require_fingerprint(digest: bytes) -> bytes:
    """The digest of a Fingerprint; raises InvalidArgumentError for what cannot be one.

    Entries have room for just that. A shorter one would never match what was written for it.
    """
    if len(digest) != DIGEST_BYTES:
        limit = f"{DIGEST_BYTES} bytes (the digest of a Fingerprint)"
        raise InvalidArgumentError("fingerprint", f"{len(digest)} bytes", limit)
    return digest


def namespace_digest(namespace: bytes) -> bytes:
    """32 bytes that stand for a namespace where its length or its bytes would not do."""
    return hashlib.sha256(framed((b"namespace", namespace))).digest()


def chain_keys(
    fingerprint: bytes,
    namespace: bytes,
    token_ids: NDArray[np.int32],
    block_tokens: int,
    parent: bytes = ROOT,
) -> list[BlockKey]:
    """Keys of the whole blocks of `token_ids`, the first of which continues `parent`.

    `fingerprint` is the digest of a Fingerprint. Every field is hashed with its length before
    it: a namespace cannot be named so that it poses as tokens, nor an adapter as a salt.
    """
    tokens = np.ascontiguousarray(token_ids, "<i4").tobytes()
    stride = block_tokens * 4
    seed = hashlib.sha256(framed((b"block", fingerprint, namespace)))
    sizes = DIGEST_BYTES.to_bytes(4, "little"), stride.to_bytes(4, "little")
    keys = []
    for start in range(0, len(tokens) - stride + 1, stride):
        own = tokens[start : start + stride]
        state = seed.copy()
        state.update(b"".join((sizes[0], parent, sizes[1], own)))
        key = BlockKey(state.digest(), parent, namespace, own)
        keys.append(key)
        parent = key.digest
    return keys
