"""What was forgotten is in no tier any more, whatever is under way."""

from __future__ import annotations

from pathlib import Path

import pytest
from kv_tier_blocks import BLOCK_TOKENS, FINGERPRINT
from kv_tier_engine import NewEngine, fill_store, prompt
from kv_tier_fakes import FakeTier, until

from kvcache.tiers import DiskTier, TransferState, chain_keys


@pytest.mark.parametrize("cleared", [b"me", None])
def test_after_a_reset_no_tier_serves_anything(
    new_engine: NewEngine, store: FakeTier, tmp_path: Path, cleared: bytes | None
) -> None:
    disk = DiskTier(tmp_path, FINGERPRINT, 2**20)
    engine, tokens = new_engine(host_blocks=10, disk=disk, remote=store), prompt(5)
    engine.run(tokens, b"me")
    for _ in range(3):
        engine.push_out()
    assert engine.offload._disk is not None
    assert engine.offload._disk.flush(60)
    assert disk.stats().entries >= 5
    engine.manager.flush(cleared)
    assert engine.offload.prefetch(b"me", tokens) is None
    for worker in engine.offload._below:
        assert worker.flush(60)
    assert store.blocks_of(b"me") == 0
    for _ in range(2):
        transfer = engine.offload.prefetch(b"me", tokens)
        if transfer is not None:
            assert engine.finish(transfer) is TransferState.MISSED
        assert engine.cached(tokens, b"me") == 0
        assert engine.host.leading_hits(chain_keys(FINGERPRINT, b"me", tokens, BLOCK_TOKENS)) == 0


@pytest.mark.parametrize("reads_early", [True, False])
def test_a_reset_while_a_load_is_under_way_leaves_nothing_to_hit(
    new_engine: NewEngine, store: FakeTier, reads_early: bool
) -> None:
    engine, tokens = new_engine(host_blocks=1, disk=store), prompt(5)
    fill_store(engine, tokens)
    store.reads_early = reads_early
    store.gate("read").clear()
    transfer = engine.offload.prefetch(b"", tokens)
    assert transfer is not None
    until(lambda: store.waiting == 1)
    engine.manager.flush(b"")
    store.open_all()
    assert engine.finish(transfer) is TransferState.CANCELLED
    until(lambda: store.blocks_of(b"") == 0)
    engine.offload.poll()
    assert engine.cached(tokens) == 0
    assert engine.manager.stats().loading == 0


def test_a_running_sequence_puts_nothing_back_after_a_reset(new_engine: NewEngine) -> None:
    engine, tokens = new_engine(), prompt(5)
    sequence = engine.start(tokens)
    engine.manager.flush(None)
    assert engine.offload.swap_out(sequence) == 0
    engine.manager.release(sequence)
    engine.push_out()
    assert engine.offload.prefetch(b"", tokens) is None
