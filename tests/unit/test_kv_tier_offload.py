"""Blocks that leave the device come back whole, or not at all, whatever happens to transfers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kv_tier_blocks import BLOCK_BYTES, BLOCK_TOKENS, FINGERPRINT, contents
from kv_tier_engine import DEVICE_BLOCKS, LEASE_SECONDS, Engine, Tokens, prompt
from kv_tier_fakes import Clock, FakeTier, until

from kvcache.tiers import TierError, chain_keys
from kvcache.tiers.disk import DiskTier
from kvcache.tiers.host import HostTier
from kvcache.tiers.loads import LoadLimits
from kvcache.tiers.offload import Offload
from kvcache.tiers.transfer import TransferState


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> FakeTier:
    return FakeTier()


NewEngine = Callable[..., Engine]


@pytest.fixture
def new_engine(clock: Clock, store: FakeTier) -> Iterator[NewEngine]:
    engines: list[Engine] = []

    def opened(**settings: object) -> Engine:
        engines.append(Engine(clock, **settings))  # type: ignore[arg-type]
        return engines[-1]

    yield opened
    store.open_all()
    for engine in engines:
        engine.manager.audit()
        for transfer in list(engine.offload._loads._open.values()):
            engine.offload.cancel(transfer)
        assert engine.host.pinned_blocks == 0
        assert engine.manager.stats().loading == 0
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


# --- reset -----------------------------------------------------------------------


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
    assert engine.offload._disk.flush(5)
    assert disk.stats().entries >= 5
    engine.manager.flush(cleared)
    assert engine.offload.prefetch(b"me", tokens) is None
    for worker in engine.offload._below:
        assert worker.flush(5)
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


# --- slow stores -----------------------------------------------------------------


def fill_store(engine: Engine, tokens: Tokens) -> None:
    """Has the blocks of a prompt in the store below and nowhere else."""
    engine.run(tokens)
    for _ in range(2):
        engine.push_out()
    for worker in engine.offload._below:
        assert worker.flush(5)
    keys = chain_keys(FINGERPRINT, b"", tokens, BLOCK_TOKENS)
    assert engine.host.leading_hits(keys) == 0
    assert engine.cached(tokens) == 0


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
