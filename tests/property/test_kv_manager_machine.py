"""Random lives of sequences against a naive cache that remembers whole prefixes.

The oracle knows no tree: a dict from (namespace, prefix) to its block and the time of its last
release. It predicts every hit, every eviction and every block number exactly. The contents of
the pool are modelled too: a slot contains the prefix whose last token was written there. If the
table of a live sequence ever points at other contents, the manager would serve wrong KV.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_cores import needs_native

from kvcache import AdmissionRequest, CacheManager, Fits, NeverFits, NotNow
from kvcache.core import CoreChoice

NAMESPACES = (b"red", b"blue")
Key = tuple[bytes, tuple[int, ...]]
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=24)
MOSTLY = st.sampled_from([True, True, True, False])


@dataclass
class Mirror:
    """What the test knows of a sequence."""

    namespace: bytes
    tokens: list[int]
    publish: bool
    prompt_tokens: int = 0
    computed: int = 0

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    def key(self, end: int) -> Key:
        return self.namespace, tuple(self.tokens[:end])


@dataclass
class Entry:
    """A published block."""

    block: int
    released_at: int


class CacheMachine(RuleBasedStateMachine):
    """Every rule is one call of a scheduler; the invariants look at everything."""

    core: CoreChoice = "python"

    @initialize(block_tokens=st.sampled_from([1, 2, 3, 4, 16]), usable=st.integers(1, 14))
    def start(self, block_tokens: int, usable: int) -> None:
        self.size = block_tokens
        self.usable = usable
        self.manager = CacheManager(usable + 1, block_tokens, policy="lru", core=self.core)
        assert self.manager.usable_blocks == usable
        self.live: dict[int, Mirror] = {}
        self.preempted: list[Mirror] = []
        self.index: dict[Key, Entry] = {}
        self.content: dict[tuple[int, int], tuple[int, ...]] = {}
        self.next_id = 0
        self.clock = 0
        self.hit_tokens = self.resumed_hit_tokens = self.lookup_tokens = 0
        self.evicted_blocks = self.preemptions = self.lookups = 0

    # --- the oracle ---

    def slot(self, sequence_id: int, position: int) -> tuple[int, int]:
        table = self.manager.block_table(sequence_id)
        return int(table[position // self.size]), position % self.size

    def held(self) -> dict[int, set[int]]:
        holders: dict[int, set[int]] = {}
        for sequence_id in self.live:
            for block in self.manager.block_table(sequence_id).tolist():
                holders.setdefault(block, set()).add(sequence_id)
        return holders

    def match(self, mirror: Mirror) -> list[int]:
        found: list[int] = []
        for end in range(self.size, len(mirror.tokens), self.size):
            entry = self.index.get(mirror.key(end))
            if entry is None:
                break
            found.append(entry.block)
        return found

    def take(self, count: int, busy: set[int]) -> list[int]:
        """The blocks that allocation must give: evicts from the index what must go."""
        cached = {entry.block for entry in self.index.values()} - busy
        free = set(range(1, self.usable + 1)) - busy - cached
        while len(free) < count:
            evictable = [key for key, entry in self.index.items() if entry.block not in busy]
            victim = min(
                evictable, key=lambda key: (self.index[key].released_at, -len(key[1]), key)
            )
            assert not any(
                other != victim
                and other[0] == victim[0]
                and other[1][: len(victim[1])] == victim[1]
                for other in self.index
            ), "only leaves are evicted"
            free.add(self.index.pop(victim).block)
            self.evicted_blocks += 1
        return sorted(free)[:count]

    def pending(self, mirror: Mirror) -> int:
        best = 0
        for other in self.live.values():
            prefilling = other.publish and other.computed < other.prompt_tokens
            if not prefilling or other.namespace != mirror.namespace:
                continue
            common = 0
            limit = min(len(mirror.tokens) - 1, other.prompt_tokens)
            while common < limit and mirror.tokens[common] == other.tokens[common]:
                common += 1
            best = max(best, common // self.size)
        return best * self.size if best > len(self.match(mirror)) else 0

    # --- rules ---

    def admit(self, mirror: Mirror, use_cache: bool, headroom: int, resumed: bool) -> bool:
        request = AdmissionRequest(
            self.next_id,
            np.array(mirror.tokens, np.int32),
            mirror.namespace,
            use_cache,
            mirror.publish,
            headroom,
            resumed,
        )
        before = self.manager.stats()
        assert self.manager.pending_prefix(request) == (self.pending(mirror) if use_cache else 0)
        answer = self.manager.admit(request)
        assert self.manager.stats() == before, "admit is pure"

        hits = self.match(mirror) if use_cache else []
        needed = -(-len(mirror.tokens) // self.size)
        busy = set(self.held())
        available = self.usable - len(busy | set(hits))
        short = needed - len(hits) + (headroom if self.live else 0) - available
        if needed > self.usable:
            assert answer == NeverFits(needed, self.usable, self.usable * self.size)
            return False
        if short > 0:
            assert isinstance(answer, NotNow)
            assert answer.short_blocks == short
            assert self.live, "an idle pool admits all that can ever fit"
            lengths = [self.manager.block_table(i).size for i in answer.holders]
            assert lengths == sorted(lengths, reverse=True)
            return False
        assert isinstance(answer, Fits)
        assert answer.cached_tokens == len(hits) * self.size < len(mirror.tokens)
        assert answer.new_blocks == needed - len(hits)
        new = self.take(needed - len(hits), busy | set(hits))
        assert self.manager.begin(answer) == answer.cached_tokens
        assert self.manager.block_table(self.next_id).tolist() == hits + new
        mirror.computed = answer.cached_tokens
        self.live[self.next_id] = mirror
        self.next_id += 1
        if resumed:
            self.resumed_hit_tokens += mirror.computed
            return True
        if use_cache:
            self.hit_tokens += mirror.computed
            self.lookup_tokens += len(mirror.tokens)
        full_hit = use_cache and 0 < len(hits) == (len(mirror.tokens) - 1) // self.size
        self.lookups += not full_hit
        return True

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        tokens=TOKENS,
        use_cache=MOSTLY,
        publish=MOSTLY,
        headroom=st.integers(0, 2),
    )
    def arrive(
        self, namespace: bytes, tokens: list[int], use_cache: bool, publish: bool, headroom: int
    ) -> None:
        self.admit(Mirror(namespace, tokens, publish), use_cache, headroom, resumed=False)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.lists(st.integers(0, 1), max_size=4))
    def arrive_alike(self, data: st.DataObject, extra: list[int]) -> None:
        other = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        tokens = other.tokens[: data.draw(st.integers(1, len(other.tokens)))] + extra
        self.admit(Mirror(other.namespace, tokens, publish=True), True, 0, resumed=False)

    @precondition(lambda self: self.preempted)
    @rule()
    def resume(self) -> None:
        gone = self.preempted[0]
        if self.admit(Mirror(gone.namespace, gone.tokens, gone.publish), True, 0, resumed=True):
            self.preempted.pop(0)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.live)))
        mirror = self.live[sequence_id]
        busy = set(self.held())
        before = self.manager.stats()
        full = len(mirror.tokens) % self.size == 0
        short = self.manager.append(sequence_id, token)
        assert short == int(full and len(busy) == self.usable)
        if short:
            assert self.manager.stats() == before
            return
        mirror.tokens.append(token)
        if full:
            assert self.take(1, busy) == [self.manager.block_table(sequence_id)[-1]]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.live)))
        mirror = self.live[sequence_id]
        target = data.draw(st.integers(mirror.computed, len(mirror.tokens)))
        for position in range(mirror.computed, target):
            slot = self.slot(sequence_id, position)
            self.content[slot] = tuple(mirror.tokens[: position + 1])
        self.manager.commit(sequence_id, target)
        mirror.computed = target
        if not mirror.publish:
            return
        table = self.manager.block_table(sequence_id).tolist()
        for number in range(target // self.size):
            # The first block that had these contents stays the only one.
            new = Entry(table[number], released_at=0)
            entry = self.index.setdefault(mirror.key((number + 1) * self.size), new)
            assert entry.block == table[number]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), as_preemption=st.booleans())
    def leave(self, data: st.DataObject, as_preemption: bool) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.live)))
        table = self.manager.block_table(sequence_id).tolist()
        mirror = self.live.pop(sequence_id)
        if as_preemption:
            self.manager.preempt(sequence_id)
            self.preempted.append(mirror)
            self.preemptions += 1
        else:
            assert self.manager.release(sequence_id)
        assert not self.manager.release(sequence_id)
        self.clock += 1
        for number, block in enumerate(table):
            entry = self.index.get(mirror.key((number + 1) * self.size))
            if entry is not None and entry.block == block:
                entry.released_at = self.clock

    @rule(namespace=st.sampled_from([None, *NAMESPACES]))
    def flush(self, namespace: bytes | None) -> None:
        held = self.held()
        gone = [key for key in self.index if namespace in (None, key[0])]
        kept = sum(self.index.pop(key).block in held for key in gone)
        result = self.manager.flush(namespace)
        assert (result.dropped_blocks, result.kept_blocks) == (len(gone) - kept, kept)
        for mirror in self.live.values():
            if namespace in (None, mirror.namespace):
                mirror.publish = False

    # --- invariants ---

    @invariant()
    def books_balance(self) -> None:
        self.manager.audit()
        held = self.held()
        cached = [entry for entry in self.index.values() if entry.block not in held]
        stats = self.manager.stats()
        assert stats.total == self.usable
        assert stats.held == len(held)
        assert stats.shared == sum(len(holders) >= 2 for holders in held.values())
        assert stats.cached == len(cached)
        assert stats.free == self.usable - len(held) - len(cached)
        assert stats.pinned == stats.loading == stats.storing == 0
        assert stats.live_sequences == len(self.live)
        assert stats.reserved == sum(
            self.manager.block_table(sequence_id).size - -(-mirror.computed // self.size)
            for sequence_id, mirror in self.live.items()
        )
        assert stats.hit_tokens == self.hit_tokens
        assert stats.resumed_hit_tokens == self.resumed_hit_tokens
        assert stats.lookup_tokens == self.lookup_tokens
        assert stats.evicted_blocks == self.evicted_blocks
        assert stats.preemptions == self.preemptions
        assert sum(stats.misses.values()) == self.lookups

    @invariant()
    def the_index_has_what_was_published_and_not_evicted(self) -> None:
        for namespace, prefix in self.index:
            probe = np.array([*prefix, 0], np.int32)
            assert self.manager.lookup(namespace, probe) == len(prefix)

    @invariant()
    def tables_point_at_the_right_contents(self) -> None:
        for sequence_id, mirror in self.live.items():
            assert self.manager.num_tokens(sequence_id) == len(mirror.tokens)
            assert self.manager.computed_tokens(sequence_id) == mirror.computed
            assert 0 not in self.manager.block_table(sequence_id)
            for position in range(mirror.computed):
                slot = self.slot(sequence_id, position)
                assert self.content[slot] == tuple(mirror.tokens[: position + 1])


class NativeCacheMachine(CacheMachine):
    core = "native"


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCacheMachine.pytestmark = [pytest.mark.slow]
TestNativeCacheMachine = NativeCacheMachine.TestCase
TestNativeCacheMachine.settings = TestCacheMachine.settings
TestNativeCacheMachine.pytestmark = [pytest.mark.slow, needs_native]
