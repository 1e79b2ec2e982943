"""Threads in front of a store: the engine waits for nothing and sees no exception."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
from kv_tier_blocks import BLOCK_BYTES, buffers, contents, keys_of
from kv_tier_fakes import Clock, FakeTier, until

from kvcache.errors import InvalidArgumentError
from kvcache.tiers import BlockKey, TierError
from kvcache.tiers.breaker import Breaker
from kvcache.tiers.worker import Job, TierWorker

NewWorker = Callable[..., TierWorker]


@pytest.fixture
def tier() -> FakeTier:
    return FakeTier()


@pytest.fixture
def new_worker(tier: FakeTier, clock: Clock) -> Iterator[NewWorker]:
    workers: list[TierWorker] = []

    def opened(queue_blocks: int = 100, readers: int = 2) -> TierWorker:
        workers.append(
            TierWorker(tier, queue_bytes=queue_blocks * BLOCK_BYTES, readers=readers, clock=clock)
        )
        return workers[-1]

    yield opened
    tier.open_all()
    for worker in workers:
        worker.close(seconds=60)
        assert tier.is_closed


def offer_all(worker: TierWorker, keys: Sequence[BlockKey]) -> list[bool]:
    return [worker.offer(key, memoryview(contents(key))) for key in keys]


def answer(worker: TierWorker, keys: Sequence[BlockKey]) -> tuple[int, list[bytes]]:
    into = buffers(len(keys))
    job = Job(keys, into)
    worker.submit(job)
    until(lambda: job.answer is not None)
    assert job.answer is not None
    return job.answer, [bytes(buffer) for buffer in into[: job.answer]]


def test_what_was_offered_is_found(new_worker: NewWorker) -> None:
    worker, keys = new_worker(), keys_of(3)
    assert offer_all(worker, keys) == [True] * 3
    assert worker.flush(60)
    assert worker.leading_hits(keys) == 3
    assert answer(worker, keys) == (3, [contents(key) for key in keys])
    job = Job([*keys, *keys_of(1, first_token=99)])
    worker.submit(job)
    until(lambda: job.answer == 3)


def test_a_block_is_copied_when_it_is_offered(new_worker: NewWorker, tier: FakeTier) -> None:
    """Its slot is overwritten long before the store takes it."""
    worker, key = new_worker(), keys_of(1)[0]
    tier.gate("put").clear()
    slot = bytearray(contents(key))
    worker.offer(key, memoryview(slot))
    slot[:] = bytes(BLOCK_BYTES)
    tier.open_all()
    worker.flush(60)
    assert answer(worker, [key])[1] == [contents(key)]


def test_a_slow_store_costs_blocks_and_no_time(new_worker: NewWorker, tier: FakeTier) -> None:
    worker = new_worker(queue_blocks=3)
    tier.gate("put").clear()
    taken = offer_all(worker, keys_of(10))
    assert taken == [True] * 3 + [False] * 7
    assert worker.stats().dropped_blocks == 7
    assert worker.stats().queued_bytes == 3 * BLOCK_BYTES
    tier.open_all()
    assert worker.flush(60)
    assert worker.stats().queued_bytes == 0
    assert offer_all(worker, keys_of(1, first_token=500)) == [True]


def test_an_offer_may_wait_for_room(new_worker: NewWorker, tier: FakeTier) -> None:
    worker, keys = new_worker(queue_blocks=1), keys_of(2)
    tier.gate("put").clear()
    assert offer_all(worker, keys[:1]) == [True]
    threading.Timer(0.05, tier.open_all).start()
    assert worker.offer(keys[1], memoryview(contents(keys[1])), wait_seconds=60)


def test_failures_are_misses_and_two_lines_in_the_log(
    new_worker: NewWorker, tier: FakeTier, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    worker, keys = new_worker(), keys_of(3)
    offer_all(worker, keys)
    worker.flush(60)
    tier.error = TierError("fake", "connection lost")
    with caplog.at_level(logging.WARNING, "kvcache.tiers"):
        for _ in range(20):
            assert answer(worker, keys) == (0, [])
            clock.advance(60)
        assert worker.stats().failures == 20
        assert worker.stats().is_failing
        tier.error = None
        assert answer(worker, keys)[0] == 3
    assert not worker.stats().is_failing
    assert [record.getMessage() for record in caplog.records] == [
        "fake tier: fails, its blocks are misses now (connection lost)",
        "fake tier: works again",
    ]


def test_a_store_that_raises_what_it_must_not_is_a_failing_store_too(
    new_worker: NewWorker, tier: FakeTier, caplog: pytest.LogCaptureFixture
) -> None:
    worker, keys = new_worker(), keys_of(1)
    tier.error = ZeroDivisionError("a bug")
    assert answer(worker, keys)[0] == 0
    assert "raised what a tier must not" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert worker.stats().is_failing


def test_so_is_one_that_does_so_when_the_engine_itself_asks(
    new_worker: NewWorker, tier: FakeTier, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = new_worker()
    tier.error = ZeroDivisionError("a bug")
    assert worker.leading_hits(keys_of(1)) == 0
    assert "ZeroDivisionError" in caplog.text
    assert worker.stats().is_failing
    tier.error = None
    clock.advance(10)
    worker.leading_hits(keys_of(1))
    assert worker.stats().is_failing, "what it remembers says nothing about its disk"


def test_a_failing_store_is_left_alone_for_longer_and_longer(
    new_worker: NewWorker, tier: FakeTier, clock: Clock
) -> None:
    worker, keys = new_worker(readers=1), keys_of(1)
    tier.error = TierError("fake", "down")
    tried = []
    for _ in range(200):
        before = tier.calls
        answer(worker, keys)
        if tier.calls > before:
            tried.append(clock())
        clock.advance(0.5)
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses[:7] == [0.5, 1, 2, 4, 8, 16, 30]
    assert offer_all(worker, keys) == [False], "nothing is queued for it either"
    assert not worker.may_have(b"")


def test_a_store_that_takes_no_block_loses_only_that_one(
    new_worker: NewWorker, tier: FakeTier
) -> None:
    worker, keys = new_worker(), keys_of(2)
    tier.refuses = True
    offer_all(worker, keys)
    assert worker.flush(60)
    assert worker.stats().dropped_blocks == 2
    assert not worker.stats().is_failing


def test_a_namespace_is_gone_from_the_moment_it_is_dropped(
    new_worker: NewWorker, tier: FakeTier
) -> None:
    worker = new_worker()
    mine, yours = keys_of(3, namespace=b"me"), keys_of(2, namespace=b"you")
    offer_all(worker, mine[:1])
    worker.flush(60)
    tier.gate("put").clear()
    offer_all(worker, mine[1:] + yours)
    until(lambda: tier.waiting == 1)
    worker.drop(b"me")
    assert worker.leading_hits(mine) == 0
    assert answer(worker, mine)[0] == 0
    assert worker.offer(mine[0], memoryview(contents(mine[0]))) is False
    assert worker.stats().pending_drops == 1
    assert worker.stats().queued_bytes == 3 * BLOCK_BYTES, "one is being put, two are of others"
    tier.open_all()
    assert worker.flush(60)
    assert tier.blocks_of(b"me") == 0, "the block that was being put is gone too"
    assert answer(worker, yours)[0] == 2
    offer_all(worker, mine)
    worker.flush(60)
    assert answer(worker, mine)[0] == 3


def test_a_drop_that_fails_keeps_the_namespace_closed_until_it_is_done(
    new_worker: NewWorker, tier: FakeTier, clock: Clock
) -> None:
    worker, mine = new_worker(), keys_of(2, namespace=b"me")
    offer_all(worker, mine)
    worker.flush(60)
    tier.error = TierError("fake", "connection lost")
    worker.drop(b"me")
    assert not worker.flush(0.05)
    tier.error = None
    assert worker.leading_hits(mine) == answer(worker, mine)[0] == 0, "it still has the blocks"
    clock.advance(100)
    assert worker.flush(60)
    assert tier.blocks_of(b"me") == 0
    assert worker.stats().pending_drops == 0


def test_dropping_everything_closes_every_namespace(new_worker: NewWorker, tier: FakeTier) -> None:
    worker = new_worker()
    mine, yours = keys_of(1, namespace=b"me"), keys_of(1, namespace=b"you")
    offer_all(worker, mine + yours)
    worker.flush(60)
    tier.gate("drop").clear()
    worker.drop(None)
    assert worker.leading_hits(mine) == worker.leading_hits(yours) == 0
    tier.open_all()
    assert worker.flush(60)
    assert tier.blocks_of(b"me") == tier.blocks_of(b"you") == 0


def test_closing_does_not_wait_for_a_store_that_hangs(tier: FakeTier, clock: Clock) -> None:
    worker = TierWorker(tier, queue_bytes=10 * BLOCK_BYTES, clock=clock)
    tier.gate("read").clear()
    worker.submit(Job(keys_of(1), buffers(1)))
    until(lambda: tier.waiting == 1)
    worker.close(seconds=0.05)
    assert not tier.is_closed, "a thread is still in it"
    tier.open_all()


def test_one_caller_only_tries_a_failing_store_again() -> None:
    clock = Clock()
    breaker = Breaker("fake", clock)
    breaker.failed("down")
    clock.advance(0.6)
    assert breaker.would_allow()
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert [breaker.allows() for _ in range(3)] == [True, True, True]


def test_sizes_that_make_no_sense_are_refused(tier: FakeTier) -> None:
    with pytest.raises(InvalidArgumentError, match="queue_bytes is -1"):
        TierWorker(tier, queue_bytes=-1)
    with pytest.raises(InvalidArgumentError, match="readers is 0"):
        TierWorker(tier, queue_bytes=1, readers=0)


def test_closing_lets_the_store_forget_what_it_was_told_to(tier: FakeTier, clock: Clock) -> None:
    worker = TierWorker(tier, queue_bytes=10 * BLOCK_BYTES, clock=clock)
    tier.gate("put").clear()
    offer_all(worker, keys_of(1, namespace=b"me"))
    until(lambda: tier.waiting == 1)
    worker.drop(b"me")
    threading.Timer(0.05, tier.open_all).start()
    worker.close(seconds=60)
    assert tier.counts["drop"] == 1
    assert tier.blocks_of(b"me") == 0
    assert tier.is_closed


def test_what_a_closed_store_has_not_forgotten_is_logged(
    tier: FakeTier, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = TierWorker(tier, queue_bytes=10 * BLOCK_BYTES, clock=clock)
    tier.gate("drop").clear()
    worker.drop(b"me")
    worker.close(seconds=0.05)
    assert "fake tier: closed with 1 namespaces that it has yet to forget" in caplog.messages
    tier.open_all()
