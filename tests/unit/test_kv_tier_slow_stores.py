"""Stores that are slow, fail or never answer cost hits, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from kv_tier_blocks import BLOCK_BYTES, BLOCK_TOKENS, FINGERPRINT, contents
from kv_tier_engine import LEASE_SECONDS, NewEngine, fill_store, prompt
from kv_tier_fakes import Clock, FakeTier, until

from kvcache.tiers import DiskTier, LoadLimits, TierError, TransferState, chain_keys


@pytest.mark.parametrize("role", ["disk", "remote"])
def test_what_the_host_gave_up_comes_back_from_below(
    new_engine: NewEngine, store: FakeTier, role: str
) -> None:
    engine, tokens = new_engine(host_blocks=1, **{role: store}), prompt(5)
    fill_store(engine, tokens)
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
    assert engine.cached(tokens) == 5


def test_a_prefix_is_gathered_from_wherever_its_blocks_are(
    new_engine: NewEngine, store: FakeTier, tmp_path: Path
) -> None:
    disk, tokens = DiskTier(tmp_path, FINGERPRINT, 2**20), prompt(7)
    engine = new_engine(host_blocks=10, disk=disk, remote=store)
    keys = chain_keys(FINGERPRINT, b"", tokens, BLOCK_TOKENS)
    engine.run(prompt(1))
    for place, key in enumerate(keys):
        where = (None, disk, engine.host, disk, disk, store, store)[place]
        if where is not None:
            where.put(key, contents(key))
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
    assert engine.cached(tokens) == 7
    assert engine.offload.stats().loaded_blocks == 6


def test_a_lost_answer_costs_the_blocks_until_the_deadline_only(
    new_engine: NewEngine, store: FakeTier, clock: Clock
) -> None:
    engine, tokens = new_engine(host_blocks=1, disk=store), prompt(5)
    fill_store(engine, tokens)
    store.gate("read").clear()
    transfer = engine.offload.prefetch(b"", tokens)
    until(lambda: store.waiting == 1)
    clock.advance(LEASE_SECONDS - 0.1)
    engine.offload.poll()
    assert engine.manager.stats().loading == 5
    clock.advance(0.1)
    assert engine.finish(transfer) is TransferState.EXPIRED
    assert engine.manager.stats().loading == 0
    assert engine.offload.stats().disk is not None
    assert engine.offload.stats().disk.is_failing, "a store that does not answer is left alone"
    engine.start(prompt(7, 700))


def test_a_late_answer_reaches_no_block_that_was_given_away(
    new_engine: NewEngine, store: FakeTier, clock: Clock
) -> None:
    engine, tokens, other = new_engine(host_blocks=1, disk=store), prompt(5), prompt(7, 700)
    fill_store(engine, tokens)
    store.gate("read").clear()
    transfer = engine.offload.prefetch(b"", tokens)
    until(lambda: store.waiting == 1)
    clock.advance(LEASE_SECONDS)
    engine.manager.expire()
    holder = engine.start(other)
    before = bytes(engine.arena.buffer)
    store.open_all()
    until(lambda: store.waiting == 0 and store.counts["read"] == 1)
    assert engine.finish(transfer) is TransferState.EXPIRED
    engine.offload.poll()
    assert bytes(engine.arena.buffer) == before
    assert engine.cached(tokens) == 0
    engine.manager.release(holder)


def test_what_came_before_the_deadline_is_kept(
    new_engine: NewEngine, store: FakeTier, clock: Clock
) -> None:
    engine, tokens = new_engine(host_blocks=8, disk=store), prompt(5)
    keys = chain_keys(FINGERPRINT, b"", tokens, BLOCK_TOKENS)
    for place, key in enumerate(keys):
        (engine.host if place < 2 else store).put(key, contents(key))
    store.gate("read").clear()
    transfer = engine.offload.prefetch(b"", tokens)
    until(lambda: store.waiting == 1)
    assert engine.offload.poll() == 2
    clock.advance(LEASE_SECONDS)
    assert engine.finish(transfer) is TransferState.EXPIRED
    assert transfer is not None
    assert transfer.loaded_tokens == 2 * BLOCK_TOKENS
    assert engine.cached(tokens) == 2


def test_a_store_that_lost_a_block_gives_what_is_before_it(
    new_engine: NewEngine, tmp_path: Path
) -> None:
    disk = DiskTier(tmp_path, FINGERPRINT, 2**20)
    engine, tokens = new_engine(disk=disk), prompt(5)
    keys = chain_keys(FINGERPRINT, b"", tokens, BLOCK_TOKENS)
    for key in keys:
        disk.put(key, contents(key))
    path = next(tmp_path.rglob(keys[3].digest.hex() + ".kv"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
    assert engine.cached(tokens) == 3
    assert engine.manager.stats().loading == 0


def test_a_store_that_fails_is_a_miss(new_engine: NewEngine, store: FakeTier) -> None:
    engine, tokens = new_engine(host_blocks=1, disk=store), prompt(5)
    fill_store(engine, tokens)
    transfer = None
    store.gate("read").clear()
    transfer = engine.offload.prefetch(b"", tokens)
    until(lambda: store.waiting == 1)
    store.error = TierError("fake", "connection lost")
    store.open_all()
    assert engine.finish(transfer) is TransferState.MISSED
    assert engine.offload.prefetch(b"", tokens) is None, "it is left alone now"
    assert engine.manager.stats().loading == 0


def test_a_remote_store_that_does_not_say_what_it_has_is_done_without(
    new_engine: NewEngine, store: FakeTier, clock: Clock
) -> None:
    engine, tokens = new_engine(remote=store), prompt(5)
    keys = chain_keys(FINGERPRINT, b"", tokens, BLOCK_TOKENS)
    for place, key in enumerate(keys):
        (engine.host if place < 2 else store).put(key, contents(key))
    store.gate("look").clear()
    transfer = engine.offload.prefetch(b"", tokens)
    engine.offload.poll()
    assert engine.manager.stats().loading == 0, "nothing is leased while a store is asked"
    clock.advance(1.0)
    assert engine.finish(transfer) is TransferState.DONE
    assert engine.cached(tokens) == 2


def test_a_store_in_trouble_is_not_waited_for(new_engine: NewEngine, store: FakeTier) -> None:
    engine, tokens = new_engine(remote=store), prompt(5)
    store.error = TierError("fake", "down")
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.MISSED
    looks = store.counts["look"]
    assert engine.offload.prefetch(b"", tokens) is None
    assert store.counts["look"] == looks


def test_blocks_being_read_are_bounded_even_if_answers_never_come(
    new_engine: NewEngine, store: FakeTier, clock: Clock
) -> None:
    limits = LoadLimits(min_blocks=1, lease_seconds=LEASE_SECONDS, staging_bytes=3 * BLOCK_BYTES)
    engine, tokens = new_engine(host_blocks=1, disk=store, limits=limits), prompt(5)
    fill_store(engine, tokens)
    store.gate("read").clear()
    transfer = engine.offload.prefetch(b"", tokens)
    until(lambda: store.waiting == 1)
    assert engine.manager.stats().loading == 3
    clock.advance(LEASE_SECONDS)
    assert engine.finish(transfer) is TransferState.EXPIRED
    clock.advance(LEASE_SECONDS)
    assert engine.offload.prefetch(b"", tokens) is None, "the buffers are still being written to"
    store.open_all()
    until(lambda: store.waiting == 0)
    until(lambda: not any(s.ready() is None for s in engine.offload._loads._reading))
    assert engine.finish(engine.offload.prefetch(b"", tokens)) is TransferState.DONE
    assert engine.cached(tokens) == 3
