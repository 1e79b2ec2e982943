"""The format of a block on disk and in a remote store: the block asked for, or a reason."""

from __future__ import annotations

import pytest
from kv_tier_blocks import BLOCK_BYTES, FINGERPRINT, OTHER_FINGERPRINT, contents, keys_of

from kvcache.tiers import BlockKey
from kvcache.tiers.entry import (
    BadEntryError,
    EntryFault,
    encode_head,
    head_bytes,
    verify,
    verify_whole,
)

KEY = keys_of(2, namespace=b"tenant")[1]
PAYLOAD = contents(KEY)
HEAD = encode_head(FINGERPRINT, KEY, PAYLOAD)
ENTRY = HEAD + PAYLOAD
VERSION_AT = 8


def fault_of(entry: bytes, key: BlockKey = KEY, fingerprint: bytes = FINGERPRINT) -> EntryFault:
    with pytest.raises(BadEntryError) as caught:
        verify_whole(fingerprint, key, entry, BLOCK_BYTES)
    return caught.value.fault


def test_an_entry_gives_back_its_payload() -> None:
    assert verify_whole(FINGERPRINT, KEY, ENTRY, BLOCK_BYTES) == PAYLOAD
    assert len(HEAD) == head_bytes(KEY)
    verify(FINGERPRINT, KEY, HEAD, PAYLOAD)


def test_every_flipped_bit_is_found() -> None:
    for place in range(len(ENTRY) * 8):
        damaged = bytearray(ENTRY)
        damaged[place // 8] ^= 1 << place % 8
        expected = {EntryFault.CORRUPT}
        if VERSION_AT <= place // 8 < VERSION_AT + 4:
            expected = {EntryFault.FOREIGN}
        assert fault_of(bytes(damaged)) in expected, f"bit {place}"


@pytest.mark.parametrize("size", [0, 1, len(HEAD) - 1, len(HEAD), len(ENTRY) - 1])
def test_a_short_entry_is_truncated(size: int) -> None:
    assert fault_of(ENTRY[:size]) is EntryFault.TRUNCATED


def test_an_entry_with_something_behind_it_is_corrupt() -> None:
    assert fault_of(ENTRY + b"\0") is EntryFault.CORRUPT


def test_zeros_are_corrupt() -> None:
    assert fault_of(bytes(len(ENTRY))) is EntryFault.CORRUPT


def test_an_entry_of_other_weights_is_foreign() -> None:
    entry = encode_head(OTHER_FINGERPRINT, KEY, PAYLOAD) + PAYLOAD
    assert fault_of(entry) is EntryFault.FOREIGN


@pytest.mark.parametrize(
    "asked",
    [
        KEY._replace(tokens=bytes(len(KEY.tokens))),
        KEY._replace(parent=bytes(32)),
        KEY._replace(namespace=b"tenanu"),
        KEY._replace(digest=bytes(32)),
        KEY._replace(namespace=KEY.namespace + KEY.tokens[:1], tokens=KEY.tokens[1:]),
    ],
)
def test_an_entry_of_another_block_is_not_taken_for_it(asked: BlockKey) -> None:
    """Not even where two blocks have one digest: all that the key says is compared."""
    assert fault_of(ENTRY, asked) is EntryFault.DIFFERENT_TOKENS
