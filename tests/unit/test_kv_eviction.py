"""What the eviction policies promise, through the manager."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kv_cores import NewManager
from numpy.typing import NDArray

from kvcache import AdmissionRequest, CacheManager, Fits
from kvcache.core.eviction import PolicyName
from kvcache.errors import InvalidArgumentError

POOL = 100


class Cache:
    """A pool of blocks of one token; prompts are ranges of tokens."""

    def __init__(self, manager: CacheManager) -> None:
        self.manager = manager
        self._next_id = 0

    def start(self, prompt: NDArray[np.int32], *, resumed: bool = False) -> int:
        """Admits and computes a prompt, which stays live."""
        self._next_id += 1
        request = AdmissionRequest(self._next_id, prompt, b"", resumed=resumed)
        answer = self.manager.admit(request)
        assert isinstance(answer, Fits)
        self.manager.begin(answer)
        self.manager.commit(self._next_id, prompt.size)
        return self._next_id

    def use(self, prompt: NDArray[np.int32], *, resumed: bool = False) -> None:
        self.manager.release(self.start(prompt, resumed=resumed))

    def left(self, prompt: NDArray[np.int32]) -> int:
        """Blocks of the prompt that are cached."""
        return self.manager.lookup(b"", np.append(prompt, np.int32(-1)))

    def scan(self, blocks: int, length: int = 10) -> None:
        """Prompts that come once."""
        for first in range(1000, 1000 + blocks, length):
            self.use(tokens(first, length))


NewCache = Callable[[PolicyName], Cache]


@pytest.fixture
def new_cache(new_manager: NewManager) -> NewCache:
    """Makes a cache of POOL blocks, with each core."""
    return lambda policy: Cache(new_manager(POOL + 1, 1, policy=policy))


def tokens(first: int, count: int) -> NDArray[np.int32]:
    return np.arange(first, first + count, dtype=np.int32)


def test_one_pass_over_ten_times_the_pool_leaves_a_warm_session_alone(new_cache: NewCache) -> None:
    session = tokens(0, 25)
    cache = new_cache("reuse-aware")
    cache.use(session)
    cache.use(session)
    cache.scan(10 * POOL)
    assert cache.left(session) >= 24  # its last block was computed anew for the last token
    lru = new_cache("lru")
    lru.use(session)
    lru.use(session)
    lru.scan(10 * POOL)
    assert lru.left(session) == 0


def test_a_session_used_once_is_no_warm_session(new_cache: NewCache) -> None:
    cache = new_cache("reuse-aware")
    cache.use(tokens(0, 20))
    cache.scan(2 * POOL)
    assert cache.left(tokens(0, 20)) == 0


def test_the_candidates_of_one_prompt_are_one_use(new_cache: NewCache) -> None:
    cache = new_cache("reuse-aware")
    first = cache.start(tokens(0, 20))
    others = [cache.start(tokens(0, 20)) for _ in range(3)]
    for sequence in (first, *others):
        cache.manager.release(sequence)
    cache.scan(2 * POOL)
    assert cache.left(tokens(0, 20)) == 0


def test_a_sequence_that_comes_back_after_a_preemption_is_one_use(new_cache: NewCache) -> None:
    cache = new_cache("reuse-aware")
    cache.manager.preempt(cache.start(tokens(0, 20)))
    cache.use(tokens(0, 20), resumed=True)
    cache.scan(2 * POOL)
    assert cache.left(tokens(0, 20)) == 0


def test_new_blocks_behind_a_reused_prefix_were_used_once(new_cache: NewCache) -> None:
    cache = new_cache("reuse-aware")
    cache.use(tokens(0, 10))
    cache.use(tokens(0, 30))
    cache.scan(3 * POOL)
    assert 9 <= cache.left(tokens(0, 30)) <= 10


def test_a_prefix_of_a_longer_prompt_is_reused_alone(new_cache: NewCache) -> None:
    cache = new_cache("reuse-aware")
    cache.use(tokens(0, 30))
    cache.use(np.append(tokens(0, 10), np.int32(77)))
    cache.scan(3 * POOL)
    assert cache.left(tokens(0, 30)) == 10


def test_reused_blocks_go_when_they_are_idle_for_twice_as_long_down_to_a_quarter(
    new_cache: NewCache,
) -> None:
    cache = new_cache("reuse-aware")
    session = tokens(0, 51)
    cache.use(session)
    cache.use(session)  # 50 are reused, the last one was computed again
    left = []
    for first in range(1000, 1400):
        cache.use(tokens(first, 1))
        left.append(cache.left(session))
    # 50 blocks are for those used once, so that they go when they are idle for 49 releases.
    assert left[50:98] == [50] * 48
    assert left[100] < 50
    assert left[-1] == 25


def test_a_pool_full_of_stale_reused_blocks_lets_a_new_session_become_warm(
    new_cache: NewCache,
) -> None:
    cache = new_cache("reuse-aware")
    for first in range(0, POOL, 10):
        cache.use(tokens(first, 10))
        cache.use(np.append(tokens(first, 10), np.int32(-5)))
    session = tokens(5000, 20)
    cache.use(session)
    cache.use(tokens(6000, 10))
    assert cache.left(session) == 20


def test_the_blocks_of_each_kind_are_counted_when_runs_are_cut(new_cache: NewCache) -> None:
    cache = new_cache("reuse-aware")
    for first in (0, 100, 200):  # a third of a run is hit, then all is forgotten
        cache.use(tokens(first, 30))
        cache.use(np.append(tokens(first, 10), np.int32(-7)))
    cache.manager.flush(None)
    session = tokens(0, 25)
    cache.use(session)
    cache.use(np.append(session, np.int32(-8)))
    for _ in range(10):
        cache.use(tokens(6000, 1))
    cache.start(tokens(3000, 70))
    cache.use(tokens(4000, 3))  # the pool is full
    cache.use(tokens(5000, 1))
    assert cache.left(session) == 25
    # 5 blocks were used once: fewer than were reused, which are not protected then.
    cache.use(tokens(5001, 1))
    assert cache.left(session) == 24


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="policy is 'fifo', but must be one of reuse"):
        CacheManager(10, 1, policy="fifo")  # type: ignore[arg-type]
