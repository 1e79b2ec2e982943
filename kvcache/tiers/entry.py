"""The one format of a block outside this process: a file on disk, a value in a remote store.

An entry is a header, what it names (namespace, tokens), and the bytes of the block. The header
ends in a CRC-32 over everything else. Whoever reads an entry verifies it against the key that
was asked for, and has the bytes of exactly that block or a reason why not.

CRC-32 finds every error of one or two bits in an entry below 512 MiB and every burst of up to
32 bits; of other damage it misses one in four thousand million. It guards against disks and
half-written files, not against an author of false entries: keep the store to yourself.
"""

from __future__ import annotations

import enum
import struct
import zlib

from kvcache.errors import KVCacheError
from kvcache.tiers.keys import DIGEST_BYTES, FORMAT_VERSION, BlockKey

Buffer = bytes | bytearray | memoryview

_MAGIC = b"PLIMSOLL"
# Magic, version, lengths of namespace, tokens and payload, digests of fingerprint, key, parent.
_HEADER = struct.Struct(f"<8sIIIQ{DIGEST_BYTES}s{DIGEST_BYTES}s{DIGEST_BYTES}s")
_CHECKSUM = struct.Struct("<I")


class EntryFault(enum.Enum):
    """Why an entry is not the block that was asked for."""

    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"  # another fingerprint, or another version of the format
    DIFFERENT_TOKENS = "different-tokens"  # or another namespace or parent


class BadEntryError(KVCacheError):
    """An entry cannot be used."""

    def __init__(self, fault: EntryFault) -> None:
        super().__init__(f"entry of a block: {fault.value}")
        self.fault = fault


def head_bytes(key: BlockKey) -> int:
    """Size of what comes before the payload in the entry of a block."""
    return _HEADER.size + _CHECKSUM.size + len(key.namespace) + len(key.tokens)


def encode_head(fingerprint: bytes, key: BlockKey, payload: Buffer) -> bytes:
    """What comes before the payload; the payload follows as it is, and is not copied."""
    header = _header(fingerprint, key, len(payload))
    named = key.namespace + key.tokens
    return header + _CHECKSUM.pack(_checksum(header, named, payload)) + named


def verify(fingerprint: bytes, key: BlockKey, head: Buffer, payload: Buffer) -> None:
    """Raises BadEntryError unless the two are an undamaged entry of exactly this key.

    `head` has `head_bytes(key)` bytes, `payload` those of one block.
    """
    head = memoryview(head)
    header, named = head[: _HEADER.size], head[_HEADER.size + _CHECKSUM.size :]
    magic, version, *_, made_for, _, _ = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise BadEntryError(EntryFault.CORRUPT)
    if version != FORMAT_VERSION:
        raise BadEntryError(EntryFault.FOREIGN)
    (checksum,) = _CHECKSUM.unpack_from(head, _HEADER.size)
    if checksum != _checksum(header, named, payload):
        raise BadEntryError(EntryFault.CORRUPT)
    if made_for != fingerprint:
        raise BadEntryError(EntryFault.FOREIGN)
    wanted = _header(fingerprint, key, len(payload)), key.namespace + key.tokens
    if (bytes(header), bytes(named)) != wanted:
        raise BadEntryError(EntryFault.DIFFERENT_TOKENS)


def verify_whole(
    fingerprint: bytes, key: BlockKey, entry: Buffer, payload_bytes: int
) -> memoryview:
    """The payload, a view, of an entry that is in one piece; raises BadEntryError like `verify`."""
    view, payload_at = memoryview(entry), head_bytes(key)
    if len(view) < payload_at + payload_bytes:
        raise BadEntryError(EntryFault.TRUNCATED)
    if len(view) > payload_at + payload_bytes:
        raise BadEntryError(EntryFault.CORRUPT)
    verify(fingerprint, key, view[:payload_at], view[payload_at:])
    return view[payload_at:]


def _header(fingerprint: bytes, key: BlockKey, payload_bytes: int) -> bytes:
    lengths = len(key.namespace), len(key.tokens), payload_bytes
    return _HEADER.pack(_MAGIC, FORMAT_VERSION, *lengths, fingerprint, key.digest, key.parent)


def _checksum(*parts: Buffer) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
