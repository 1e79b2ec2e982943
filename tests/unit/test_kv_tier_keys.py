"""The content address of a block: two different contents never have one key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_tier_blocks import BLOCK_TOKENS, FINGERPRINT, LAYOUT, keys_of

from kvcache import KVDtype, namespace_key
from kvcache.errors import InvalidArgumentError
from kvcache.namespace import framed
from kvcache.tiers import DiskTier, Fingerprint, RedisTier, chain_keys
from kvcache.tiers.device_keys import DeviceKeys
from kvcache.tiers.keys import ROOT


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def test_equal_prefixes_have_equal_keys_and_only_they() -> None:
    first = chain_keys(FINGERPRINT, b"n", tokens(1, 2, 3, 4, 5, 6, 7, 8), BLOCK_TOKENS)
    again = chain_keys(FINGERPRINT, b"n", tokens(1, 2, 3, 4, 5, 6, 7, 8, 9), BLOCK_TOKENS)
    other = chain_keys(FINGERPRINT, b"n", tokens(0, 2, 3, 4, 5, 6, 7, 8), BLOCK_TOKENS)
    assert first == again
    assert len(first) == 2
    assert first[1].tokens == other[1].tokens
    assert first[1].digest != other[1].digest, "the same tokens behind others are another block"


def test_a_chain_can_be_continued_from_any_of_its_blocks() -> None:
    whole = keys_of(5)
    rest = tokens(*range(3 * BLOCK_TOKENS, 5 * BLOCK_TOKENS))
    assert chain_keys(FINGERPRINT, b"", rest, BLOCK_TOKENS, whole[2].digest) == whole[3:]
    assert whole[0].parent == ROOT
    assert [key.parent for key in whole[1:]] == [key.digest for key in whole[:-1]]


def test_tokens_that_fill_no_block_have_no_key() -> None:
    assert chain_keys(FINGERPRINT, b"", tokens(1, 2, 3), BLOCK_TOKENS) == []


@pytest.mark.parametrize(
    "other",
    [
        Fingerprint("v2", "rope", LAYOUT),
        Fingerprint("v1", "rope scaled", LAYOUT),
        Fingerprint("v1", "rope", replace(LAYOUT, dtype=KVDtype.BFLOAT16)),
        Fingerprint("v1", "rope", replace(LAYOUT, layers=3)),
        Fingerprint("v1", "rope", replace(LAYOUT, block_tokens=8)),
        Fingerprint("v1r", "ope", LAYOUT),
        Fingerprint("", "v1rope", LAYOUT),
    ],
)
def test_whatever_changes_the_bytes_of_a_block_changes_the_fingerprint(other: Fingerprint) -> None:
    assert other.digest != Fingerprint("v1", "rope", LAYOUT).digest


def test_the_dtype_and_the_heads_are_apart_in_the_fingerprint() -> None:
    shapes = {
        Fingerprint("v1", "rope", replace(LAYOUT, kv_heads=heads, head_dim=dim)).digest
        for heads, dim in ((1, 12), (11, 2), (2, 1), (1, 1), (12, 1))
    }
    assert len(shapes) == 5


ADVERSARIAL_NAMESPACES = [
    b"",
    b"\0",
    b"a",
    b"ab",
    b"b",
    (1).to_bytes(4, "little"),  # poses as a token
    (32).to_bytes(4, "little") + ROOT,  # poses as the frame of the parent
    framed((b"a", b"b")),
    framed((b"", b"ab")),
    namespace_key(tenant="ab"),
    namespace_key(tenant="a", salt="b"),
    namespace_key(salt="ab"),
    namespace_key(adapter="ab"),
    namespace_key(fingerprint="ab"),
]


def test_no_namespace_poses_as_another_or_as_tokens() -> None:
    ids = [tokens(1, 2, 3, 4), tokens(0, 0, 0, 0), tokens(32, 0, 0, 0), tokens(-1, 1, 1, 1)]
    digests = [
        chain_keys(FINGERPRINT, namespace, some, BLOCK_TOKENS)[0].digest
        for namespace in ADVERSARIAL_NAMESPACES
        for some in ids
    ]
    assert len(set(digests)) == len(digests)


def test_a_namespace_does_not_take_over_a_part_of_the_parent() -> None:
    """Two blocks whose fields give the same bytes when they are only strung together."""
    frame_32, frame_16 = (size.to_bytes(4, "little") for size in (32, 16))
    long_parent = b"p" * 12 + frame_32 + b"q" * 16
    long_tokens = b"t" * 12 + frame_16 + b"u" * 16
    long = chain_keys(FINGERPRINT, b"n", np.frombuffer(long_tokens, "<i4"), 8, long_parent)
    short_namespace = b"n" + frame_32 + long_parent[:12]
    short_parent = long_parent[16:] + frame_32 + long_tokens[:12]
    short_tokens = np.frombuffer(long_tokens[16:], "<i4")
    short = chain_keys(FINGERPRINT, short_namespace, short_tokens, 4, short_parent)
    assert short[0].digest != long[0].digest


def test_one_block_of_eight_is_not_two_of_four() -> None:
    ids = tokens(*range(8))
    of_eight = chain_keys(FINGERPRINT, b"", ids, 8)[0]
    of_four = chain_keys(FINGERPRINT, b"", ids, 4)
    assert of_eight.digest not in {key.digest for key in of_four}


@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.binary(max_size=6), max_size=4))
def test_framing_is_one_to_one(left: list[bytes], right: list[bytes]) -> None:
    assert (framed(left) == framed(right)) == (left == right)


def test_the_keys_of_a_device_stay_in_order_when_blocks_move() -> None:
    keys = DeviceKeys(FINGERPRINT, BLOCK_TOKENS)
    ids = tuple(range(3 * BLOCK_TOKENS))
    keys.stored(b"", None, [7, 2, 9], ids)
    before = [key for _, key in keys]
    keys.moved([(7, 1), (8, 3), (9, 4)])
    assert list(keys) == list(zip([1, 2, 4], before, strict=True)), "parents come first"
    assert keys.of([4]) == before[2:]
    assert keys.of([9]) is None


@pytest.mark.parametrize("digest", [b"", FINGERPRINT[1:], FINGERPRINT + b"a"])
def test_what_is_no_digest_of_a_fingerprint_is_refused(digest: bytes, tmp_path: Path) -> None:
    for made in (
        lambda: DiskTier(tmp_path / "tier", digest, 2**20),
        lambda: RedisTier("redis://nowhere", digest, ttl_seconds=1),
        lambda: DeviceKeys(digest, BLOCK_TOKENS),
    ):
        with pytest.raises(InvalidArgumentError, match=f"fingerprint is '{len(digest)} bytes'"):
            made()
    assert not (tmp_path / "tier").exists()
