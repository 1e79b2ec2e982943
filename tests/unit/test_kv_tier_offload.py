"""Blocks that leave the device come back whole: from the host, after a swap, after a restart."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from kv_tier_blocks import BLOCK_BYTES, BLOCK_TOKENS, FINGERPRINT, contents
from kv_tier_engine import DEVICE_BLOCKS, Engine, NewEngine, prompt
from kv_tier_fakes import Clock, FakeTier

from kvcache import TenantShare
from kvcache.errors import InvalidArgumentError
from kvcache.tiers import DiskTier, HostTier, LoadLimits, Offload, TransferState, chain_keys


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_blocks", 0),
        ("max_transfers", 0),
        ("staging_bytes", 0),
        ("poll_bytes", 0),
        ("lease_seconds", 0.0),
        ("lease_seconds", math.inf),
        ("probe_seconds", -1.0),
        ("probe_seconds", math.nan),
    ],
)
def test_limits_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{field} is {value}"):
        LoadLimits(**{field: value})  # type: ignore[arg-type]


def test_a_host_with_blocks_of_another_size_is_refused(clock: Clock) -> None:
    engine = Engine(clock)
    other = HostTier(BLOCK_BYTES + 4, 8 * BLOCK_BYTES)
    with pytest.raises(InvalidArgumentError, match=f"must be {BLOCK_BYTES}, as those of the pool"):
        Offload(engine.manager, engine.memory, FINGERPRINT, other)
    engine.offload.close()


# --- host ------------------------------------------------------------------------


def test_what_left_the_device_comes_back_from_the_host(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(), prompt(5)
    engine.run(tokens)
    engine.push_out()
    assert engine.manager.lookup(b"", tokens) == 0
    transfer = engine.offload.prefetch(b"", tokens)
    assert engine.manager.stats().loading == 5
    assert engine.finish(transfer) is TransferState.DONE
    assert transfer is not None
    assert transfer.loaded_tokens == 5 * BLOCK_TOKENS
    assert engine.cached(tokens) == 5
    stats = engine.offload.stats()
    assert stats.loaded_blocks == 5
    assert stats.unspilled_blocks == 0
    assert stats.spilled_blocks >= 5


def test_only_what_the_device_lacks_is_loaded(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(), prompt(6)
    engine.run(tokens)
    engine.push_out()
    engine.run(prompt(2))
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
    assert engine.offload.stats().loaded_blocks == 4
    assert engine.cached(tokens) == 6


def test_a_few_blocks_are_not_worth_a_load(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(limits=LoadLimits(min_blocks=3)), prompt(5)
    engine.run(prompt(2))
    engine.push_out()
    assert engine.offload.prefetch(b"", prompt(2)) is None
    assert engine.offload.prefetch(b"", tokens) is None, "the host has two of the five"
    engine.run(tokens)
    engine.push_out()
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE


def test_a_full_device_gives_no_room_to_a_load(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(), prompt(5)
    engine.run(tokens)
    engine.start(prompt(7, first_token=500))
    assert engine.offload.prefetch(b"", tokens) is None
    assert engine.host.pinned_blocks == 0
    assert engine.offload.stats().ended_transfers == {TransferState.MISSED: 1}


def test_another_namespace_finds_nothing(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(), prompt(5)
    engine.run(tokens, b"me")
    engine.push_out()
    assert engine.offload.prefetch(b"you", tokens) is None
    assert engine.finish(engine.offload.prefetch(b"me", tokens)) is TransferState.DONE


@pytest.mark.parametrize("begins_late", [False, True])
def test_a_namespace_of_another_tenant_gets_no_load(
    new_engine: NewEngine, store: FakeTier, begins_late: bool
) -> None:
    engine, tokens = new_engine(remote=store, tenants={"a": TenantShare()}), prompt(5)
    store.gate("look").clear()
    if not begins_late:
        engine.start(prompt(1))  # now the namespace is not that of "a"
    transfer = engine.offload.prefetch(b"", tokens, "a")
    engine.start(prompt(1))
    for key in chain_keys(FINGERPRINT, b"", tokens, BLOCK_TOKENS):
        store.put(key, contents(key))
        engine.host.put(key, contents(key))
    store.open_all()
    assert engine.finish(transfer) is TransferState.MISSED
    assert engine.offload.prefetch(b"", tokens, "a") is None
    assert engine.offload.poll() == 0
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE


def test_a_sequence_that_does_not_publish_leaves_nothing_behind(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(), prompt(5)
    sequence = engine.start(tokens, publish=False)
    assert engine.offload.swap_out(sequence) == 0
    engine.manager.release(sequence)
    engine.push_out()
    assert engine.offload.prefetch(b"", tokens) is None


def test_two_requests_share_a_load_and_the_last_one_to_leave_ends_it(
    new_engine: NewEngine,
) -> None:
    engine, tokens = new_engine(), prompt(5)
    engine.run(tokens)
    engine.push_out()
    first = engine.offload.prefetch(b"", tokens)
    second = engine.offload.prefetch(b"", prompt(4))
    assert first is second
    assert first is not None
    engine.offload.cancel(first)
    assert not first.is_over
    engine.offload.cancel(first)
    assert first.state is TransferState.CANCELLED
    assert engine.manager.stats().loading == 0
    engine.offload.cancel(first)
    assert engine.offload.stats().ended_transfers == {TransferState.CANCELLED: 1}


def test_no_more_loads_than_allowed_are_open(new_engine: NewEngine) -> None:
    engine = new_engine(limits=LoadLimits(min_blocks=1, max_transfers=1))
    for first in (0, 100):
        engine.run(prompt(2, first))
    engine.push_out()
    assert engine.offload.prefetch(b"", prompt(2)) is not None
    assert engine.offload.prefetch(b"", prompt(2, 100)) is None
    assert engine.offload.stats().refused_transfers == 1


def test_a_step_copies_only_so_much(new_engine: NewEngine) -> None:
    limits = LoadLimits(min_blocks=1, poll_bytes=2 * BLOCK_BYTES)
    engine, tokens = new_engine(limits=limits), prompt(5)
    engine.run(tokens)
    engine.push_out()
    transfer = engine.offload.prefetch(b"", tokens)
    assert [engine.offload.poll() for _ in range(4)] == [2, 2, 1, 0]
    assert transfer is not None
    assert transfer.state is TransferState.DONE
    assert engine.cached(tokens) == 5


def test_evictions_of_the_host_cannot_reach_a_load_under_way(new_engine: NewEngine) -> None:
    limits = LoadLimits(min_blocks=1, poll_bytes=BLOCK_BYTES)
    engine, tokens = new_engine(host_blocks=8, limits=limits), prompt(4)
    engine.run(tokens)
    engine.push_out()
    transfer = engine.offload.prefetch(b"", tokens)
    for first in (100, 200, 300):
        engine.run(prompt(3, first))
        engine.offload.poll()
    assert engine.finish(transfer) is TransferState.DONE
    assert engine.cached(tokens) == 4


def test_a_load_follows_its_blocks_through_a_resize(new_engine: NewEngine) -> None:
    limits = LoadLimits(min_blocks=1, poll_bytes=2 * BLOCK_BYTES)
    engine, tokens = new_engine(limits=limits), prompt(4)
    engine.run(tokens)
    engine.push_out()
    holder = engine.start(prompt(2, 500))
    transfer = engine.offload.prefetch(b"", tokens)
    assert engine.offload.poll() == 2
    engine.manager.release(holder)
    result = engine.manager.resize(6)
    assert result.moved_blocks > 0
    assert engine.finish(transfer) is TransferState.DONE
    assert engine.cached(tokens) == 4


def test_blocks_that_a_resize_moved_are_spilled_as_what_they_are(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(), prompt(3)
    below = engine.start(prompt(3, 500))
    sequence = engine.start(tokens)
    engine.manager.release(below)
    assert engine.manager.resize(5).moved_blocks > 0
    engine.manager.release(sequence)
    engine.manager.resize(DEVICE_BLOCKS + 1)
    engine.push_out()
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
    assert engine.cached(tokens) == 3


def test_what_a_shrinking_pool_gives_up_is_kept(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(), prompt(6)
    engine.run(tokens)
    engine.manager.resize(3)
    engine.manager.resize(DEVICE_BLOCKS + 1)
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
    assert engine.cached(tokens) == 6


def test_what_was_cached_before_the_tiers_came_is_kept_too(clock: Clock) -> None:
    engine, tokens = Engine(clock), prompt(5)
    engine.run(tokens)
    late = HostTier(BLOCK_BYTES, 64 * BLOCK_BYTES)
    Offload(engine.manager, engine.memory, FINGERPRINT, late, clock=clock)
    engine.push_out()
    assert late.leading_hits(chain_keys(FINGERPRINT, b"", tokens, BLOCK_TOKENS)) == 5


# --- swap ------------------------------------------------------------------------


def test_a_swapped_sequence_comes_back_whatever_passed_through_the_host(
    new_engine: NewEngine,
) -> None:
    engine, tokens = new_engine(host_blocks=8), prompt(5)
    sequence = engine.start(tokens)
    assert engine.offload.swap_out(sequence) == 5 * BLOCK_TOKENS
    engine.manager.preempt(sequence)
    for _ in range(4):
        engine.push_out()
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
    assert engine.cached(tokens) == 5
    assert engine.offload.forget(sequence) == 5
    assert engine.offload.forget(sequence) == 0


def test_a_host_without_room_leaves_a_sequence_to_be_recomputed(new_engine: NewEngine) -> None:
    engine = new_engine(host_blocks=6)
    swapped = [engine.start(prompt(4)), engine.start(prompt(2, 500))]
    assert [engine.offload.swap_out(one) for one in swapped] == [4 * BLOCK_TOKENS, 2 * BLOCK_TOKENS]
    for one in swapped:
        engine.manager.preempt(one)
    third = engine.start(prompt(3, 900))
    assert engine.offload.swap_out(third) == 0
    assert engine.offload.stats().unswapped_sequences == 1
    engine.manager.preempt(third)
    engine.push_out()
    assert engine.offload.stats().unspilled_blocks > 0, "nor does what leaves the device find room"
    for tokens in (prompt(4), prompt(2, 500)):
        assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
        assert engine.cached(tokens) == tokens.size // BLOCK_TOKENS
    assert engine.offload.forget(swapped[0]) == 4
    fourth = engine.start(prompt(3, 900))
    assert engine.offload.swap_out(fourth) == 3 * BLOCK_TOKENS


def test_two_swapped_sequences_share_their_prefix(new_engine: NewEngine) -> None:
    engine = new_engine(host_blocks=4)
    first, second = engine.start(prompt(3)), engine.start(prompt(4))
    assert engine.offload.swap_out(first) == 3 * BLOCK_TOKENS
    assert engine.offload.swap_out(second) == 4 * BLOCK_TOKENS
    assert engine.host.stats().entries == 4


def test_speeds_are_measured_when_time_passes(
    new_engine: NewEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, tokens = new_engine(), prompt(5)
    assert engine.offload.rates.to_host_bytes_per_second is None
    for name in ("read", "write"):
        real = getattr(engine.memory, name)

        def timed(*arguments: object, real: Callable[..., object] = real) -> object:
            clock.advance(0.01)
            return real(*arguments)

        monkeypatch.setattr(engine.memory, name, timed)
    engine.run(tokens)
    engine.push_out()
    engine.finish(engine.offload.prefetch(b"", tokens))
    expected = pytest.approx(BLOCK_BYTES / 0.01)
    assert engine.offload.rates.to_host_bytes_per_second == expected
    assert engine.offload.rates.to_device_bytes_per_second == expected


# --- restart ---------------------------------------------------------------------


def test_a_new_process_starts_warm(new_engine: NewEngine, clock: Clock, tmp_path: Path) -> None:
    first = Engine(clock, disk=DiskTier(tmp_path, FINGERPRINT, 2**20))
    first.run(prompt(3))
    first.push_out()
    first.run(prompt(4, 600), b"tenant")
    assert first.offload.persist(10) > 0
    first.offload.close()

    second = new_engine(disk=DiskTier(tmp_path, FINGERPRINT, 2**20))
    assert second.offload.prefetch(b"", prompt(4, 600)) is None, "tenants are still apart"
    assert second.finish(second.offload.prefetch(b"", prompt(3))) is TransferState.DONE
    tenant = second.offload.prefetch(b"tenant", prompt(4, 600))
    assert second.finish(tenant) is TransferState.DONE
    assert second.cached(prompt(3)) == 3
    assert second.cached(prompt(4, 600), b"tenant") == 4


def test_persisting_ends_in_time_when_the_store_hangs(
    new_engine: NewEngine, store: FakeTier
) -> None:
    engine = new_engine(remote=store)
    engine.run(prompt(5))
    store.gate("put").clear()
    assert engine.offload.persist(0.05) >= 0
