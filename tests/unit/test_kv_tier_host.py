"""The host tier: bounded, least recently used first, and nothing kept for ever."""

from __future__ import annotations

import logging
import random

import pytest
from kv_tier_blocks import BLOCK_BYTES, buffers, contents, keys_of

from kvcache.errors import InvalidArgumentError
from kvcache.tiers import BlockKey
from kvcache.tiers.host import HostTier
from kvcache.tiers.sizing import affordable_bytes


def tier_of(slots: int, **more: object) -> HostTier:
    return HostTier(BLOCK_BYTES, slots * BLOCK_BYTES + BLOCK_BYTES // 2, **more)  # type: ignore[arg-type]


def put_all(tier: HostTier, keys: list[BlockKey]) -> list[bool]:
    return [tier.put(key, contents(key)) for key in keys]


def assert_reads(tier: HostTier, keys: list[BlockKey]) -> None:
    into = buffers(len(keys))
    assert tier.read(keys, into) == len(keys)
    assert [bytes(buffer) for buffer in into] == [contents(key) for key in keys]


def test_what_was_put_is_read() -> None:
    tier, keys = tier_of(4), keys_of(4)
    assert all(put_all(tier, keys))
    assert tier.leading_hits([*keys, *keys_of(1, first_token=99)]) == 4
    assert_reads(tier, keys)


def test_hits_are_leading_ones() -> None:
    tier, keys = tier_of(4), keys_of(4)
    put_all(tier, [keys[0], keys[2], keys[3]])
    assert tier.leading_hits(keys) == 1
    assert tier.read(keys, buffers(4)) == 1


def test_the_least_recently_used_is_given_up_and_reported_with_its_bytes() -> None:
    gone: list[tuple[BlockKey, bytes]] = []
    tier, keys = tier_of(3, evicted=lambda key, view: gone.append((key, bytes(view)))), keys_of(5)
    put_all(tier, keys[:3])
    assert_reads(tier, keys[:1])
    put_all(tier, keys[3:])
    assert gone == [(key, contents(key)) for key in keys[1:3]]
    assert [key in tier for key in keys] == [True, False, False, True, True]
    assert tier.stats().evicted_blocks == 2
    assert tier.stats().used_bytes == tier.stats().capacity_bytes == 3 * BLOCK_BYTES


def test_of_a_prefix_that_was_read_the_end_goes_first() -> None:
    tier, keys = tier_of(3), keys_of(3)
    put_all(tier, keys)
    assert_reads(tier, keys)
    put_all(tier, keys_of(1, first_token=100))
    assert tier.leading_hits(keys) == 2


def test_a_second_put_keeps_the_first_and_counts_as_use() -> None:
    tier, keys = tier_of(2), keys_of(3)
    put_all(tier, keys[:2])
    assert tier.put(keys[0], bytes(BLOCK_BYTES))
    put_all(tier, keys[2:])
    assert_reads(tier, [keys[0]])
    assert keys[1] not in tier


def test_a_block_is_found_by_all_of_its_key() -> None:
    """As if two blocks had one digest."""
    tier, key = tier_of(2), keys_of(1)[0]
    tier.put(key, contents(key))
    twin = key._replace(tokens=bytes(len(key.tokens)))
    assert twin not in tier
    assert not tier.put(twin, bytes(BLOCK_BYTES))
    assert not tier.touch(twin)
    assert_reads(tier, [key])


def test_lookups_that_nothing_comes_of_leave_no_pin() -> None:
    tier, keys = tier_of(8), keys_of(12)
    put_all(tier, keys[:8])
    some = random.Random(1)
    for _ in range(200):
        start = some.randrange(8)
        with tier.pin(keys[start : start + some.randrange(8)]):
            assert tier.pinned_blocks >= 0
    assert tier.pinned_blocks == 0
    put_all(tier, keys_of(8, first_token=500))
    assert tier.stats().evicted_blocks == 8, "everything can still be evicted"


def test_a_pin_that_is_closed_twice_lets_go_once() -> None:
    tier, keys = tier_of(2), keys_of(2)
    put_all(tier, keys)
    first, second = tier.pin(keys), tier.pin(keys)
    first.close()
    first.close()
    assert tier.pinned_blocks == 2
    assert not tier.put(*((key := keys_of(1, first_token=50)[0]), contents(key)))
    second.close()
    assert tier.pinned_blocks == 0


def test_a_pinned_block_is_neither_evicted_nor_overwritten() -> None:
    tier, keys = tier_of(2), keys_of(4)
    put_all(tier, keys[:2])
    with tier.pin(keys[:1]) as pin:
        put_all(tier, keys[1:])
        assert bytes(pin.view(0)) == contents(keys[0])
        tier.clear()
        assert keys[0] not in tier
        put_all(tier, keys_of(3, first_token=70))
        assert bytes(pin.view(0)) == contents(keys[0]), "the slot of a pin is not given away"
    assert put_all(tier, keys_of(2, first_token=90)) == [True, True]
    assert tier.stats().used_bytes == 2 * BLOCK_BYTES


def put_and_reserve(tier: HostTier, owner: int, key: BlockKey) -> bool:
    """What a swap does for one block."""
    return tier.put(key, contents(key)) and tier.reserve(owner, key)


def test_reserved_blocks_stay_until_forgotten() -> None:
    tier, keys, others = tier_of(3), keys_of(2), keys_of(9, first_token=100)
    assert all(put_and_reserve(tier, 7, key) for key in keys)
    put_all(tier, others)
    assert_reads(tier, keys)
    assert tier.forget(7) == 2
    assert tier.forget(7) == 0
    put_all(tier, others)
    assert tier.leading_hits(keys) == 0


def test_a_block_of_two_swapped_sequences_stays_for_the_second() -> None:
    tier, keys, others = tier_of(2), keys_of(1), keys_of(4, first_token=100)
    for owner in (1, 2):
        assert put_and_reserve(tier, owner, keys[0])
    tier.forget(1)
    put_all(tier, others)
    assert_reads(tier, keys)
    tier.forget(2)
    put_all(tier, others)
    assert keys[0] not in tier


def test_a_tier_full_of_reserved_blocks_refuses_and_loses_nothing() -> None:
    tier, keys = tier_of(2), keys_of(3)
    assert [put_and_reserve(tier, 7, key) for key in keys] == [True, True, False]
    assert not tier.put(keys[2], contents(keys[2]))
    assert not tier.reserve(8, keys[2])
    assert_reads(tier, keys[:2])
    assert tier.has_room_for(keys[:2]), "they are there already"
    assert not tier.has_room_for(keys)
    tier.forget(7)
    assert tier.has_room_for(keys[1:])


def test_dropping_a_namespace_drops_what_is_reserved_too_and_nothing_else() -> None:
    tier = tier_of(6)
    mine, yours = keys_of(3, namespace=b"me"), keys_of(2, namespace=b"you")
    put_all(tier, mine[:2])
    put_and_reserve(tier, 7, mine[2])
    put_all(tier, yours)
    tier.drop_namespace(b"me")
    assert [key in tier for key in mine] == [False] * 3
    assert_reads(tier, yours)
    assert tier.forget(7) == 0
    assert all(put_all(tier, keys_of(4, first_token=300))), "the slots are free again"
    assert_reads(tier, yours)


@pytest.mark.parametrize(
    ("block_bytes", "capacity_bytes", "field"),
    [(0, 100, "block_bytes"), (100, 99, "capacity_bytes")],
)
def test_a_tier_of_no_block_is_refused(block_bytes: int, capacity_bytes: int, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        HostTier(block_bytes, capacity_bytes)
    assert caught.value.field == field


def test_a_payload_of_another_size_is_refused() -> None:
    tier = tier_of(1)
    with pytest.raises(InvalidArgumentError, match="payload"):
        tier.put(keys_of(1)[0], bytes(BLOCK_BYTES + 1))
    assert tier.stats().entries == 0


def test_the_size_gives_way_to_what_the_machine_has(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvcache.tiers"):
        assert affordable_bytes(100, 50, 150) == 100
        assert not caplog.records
        assert affordable_bytes(100, 50, 149) == 99
        assert affordable_bytes(100, 50, 10) == 0
    assert len(caplog.records) == 2
    assert "99 bytes instead of 100" in caplog.messages[0]
