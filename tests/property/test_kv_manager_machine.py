"""Random lives of sequences against a naive cache that remembers whole prefixes.

The oracle knows no tree: it keeps a dict from (namespace, prefix) to a block and a set of
holders per block. The contents of the pool are modelled too: a slot contains the prefix whose
last token was written there. If a live sequence's table ever points at a slot with other
contents, the manager would have served wrong KV.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcache import AdmissionRequest, CacheManager, Fits, NeverFits, NotNow

NAMESPACES = (b"red", b"blue")
Slot = tuple[int, int]


@dataclass
class Mirror:
    """What the test knows of a live sequence."""

    namespace: bytes
    tokens: list[int]
    prompt_tokens: int
    publish: bool
    computed: int
    epoch: int


@dataclass
class Oracle:
    """Cached prefixes: the block that must hold each of them."""

    blocks: dict[tuple[bytes, tuple[int, ...]], int] = field(default_factory=dict)

    def match(self, namespace: bytes, tokens: list[int], block_tokens: int) -> list[int]:
        found: list[int] = []
        for end in range(block_tokens, len(tokens), block_tokens):
            block = self.blocks.get((namespace, tuple(tokens[:end])))
            if block is None:
                break
            found.append(block)
        return found


class CacheMachine(RuleBasedStateMachine):
    """Every rule is one call of a scheduler; the invariants look at everything."""

    @initialize(block_tokens=st.sampled_from([1, 2, 3, 4, 16]), usable=st.integers(1, 14))
    def start(self, block_tokens: int, usable: int) -> None:
        self.block_tokens = block_tokens
        self.usable = usable
        self.manager = CacheManager(usable + 1, block_tokens)
        self.live: dict[int, Mirror] = {}
        self.preempted: list[Mirror] = []
        self.oracle = Oracle()
        self.content: dict[Slot, tuple[int, ...]] = {}
        self.next_id = 0
        self.hit_tokens = self.resumed_hit_tokens = self.lookup_tokens = 0

    # --- helpers ---

    def slot(self, sequence_id: int, position: int) -> Slot:
        table = self.manager.block_table(sequence_id)
        return int(table[position // self.block_tokens]), position % self.block_tokens

    def holders(self) -> dict[int, set[int]]:
        held: dict[int, set[int]] = {}
        for sequence_id in self.live:
            for block in self.manager.block_table(sequence_id).tolist():
                held.setdefault(block, set()).add(sequence_id)
        return held

    def forget_evicted(self) -> None:
        """Takes out of the oracle what the manager evicted; checks that it was evictable."""
        held = self.holders()
        by_depth = sorted(self.oracle.blocks, key=lambda key: len(key[1]))
        for key in by_depth:
            namespace, prefix = key
            probe = np.array([*prefix, 0], np.int32)
            if self.manager.lookup(namespace, probe) < len(prefix):
                assert self.oracle.blocks[key] not in held or self.reassigned(key)
                del self.oracle.blocks[key]

    def reassigned(self, key: tuple[bytes, tuple[int, ...]]) -> bool:
        """Whether the block of an evicted prefix now holds something else."""
        block = self.oracle.blocks[key]
        for sequence_id, mirror in self.live.items():
            table = self.manager.block_table(sequence_id).tolist()
            if block in table:
                end = (table.index(block) + 1) * self.block_tokens
                if mirror.namespace == key[0] and tuple(mirror.tokens[:end]) == key[1]:
                    # Legal only if this sequence has not published that block.
                    return mirror.computed < end or not mirror.publish
        return True

    def admit(self, mirror: Mirror, use_cache: bool, headroom: int, resumed: bool) -> bool:
        size = self.block_tokens
        tokens = np.array(mirror.tokens, np.int32)
        request = AdmissionRequest(
            self.next_id, tokens, mirror.namespace, use_cache, mirror.publish, headroom, resumed
        )
        before = self.manager.stats()
        expected_pending = self.expected_pending(mirror, use_cache)
        assert self.manager.pending_prefix(request) == expected_pending
        answer = self.manager.admit(request)
        assert self.manager.stats() == before, "admit is pure"

        hits = self.oracle.match(mirror.namespace, mirror.tokens, size) if use_cache else []
        needed = -(-len(mirror.tokens) // size)
        held = self.holders()
        available = self.usable - len(held) - sum(block not in held for block in hits)
        short = needed - len(hits) + (headroom if self.live else 0) - available
        if needed > self.usable:
            assert answer == NeverFits(needed, self.usable, self.usable * size)
            return False
        if short > 0:
            assert isinstance(answer, NotNow)
            assert answer.short_blocks == short
            assert set(answer.holders) <= set(self.live)
            assert self.live, "an idle pool admits all that can ever fit"
            return False
        assert isinstance(answer, Fits)
        assert answer.cached_tokens == len(hits) * size < len(mirror.tokens)
        assert answer.new_blocks == needed - len(hits)
        assert self.manager.begin(answer) == answer.cached_tokens
        assert self.manager.block_table(self.next_id)[: len(hits)].tolist() == hits
        mirror.computed = answer.cached_tokens
        self.live[self.next_id] = mirror
        self.next_id += 1
        if resumed:
            self.resumed_hit_tokens += mirror.computed
        elif use_cache:
            self.hit_tokens += mirror.computed
            self.lookup_tokens += len(mirror.tokens)
        return True

    def expected_pending(self, mirror: Mirror, use_cache: bool) -> int:
        if not use_cache:
            return 0
        size = self.block_tokens
        best = 0
        for other in self.live.values():
            if not other.publish or other.namespace != mirror.namespace:
                continue
            if other.computed >= other.prompt_tokens:
                continue
            common = 0
            limit = min(len(mirror.tokens) - 1, other.prompt_tokens)
            while common < limit and mirror.tokens[common] == other.tokens[common]:
                common += 1
            best = max(best, common // size)
        cached = len(self.oracle.match(mirror.namespace, mirror.tokens, size))
        return best * size if best > cached else 0

    # --- rules ---

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24),
        use_cache=st.sampled_from([True, True, True, False]),
        publish=st.sampled_from([True, True, True, False]),
        headroom=st.integers(0, 2),
    )
    def arrive(
        self, namespace: bytes, tokens: list[int], use_cache: bool, publish: bool, headroom: int
    ) -> None:
        mirror = Mirror(namespace, tokens, len(tokens), publish, 0, 0)
        self.admit(mirror, use_cache, headroom, resumed=False)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.lists(st.integers(0, 1), max_size=4))
    def arrive_alike(self, data: st.DataObject, extra: list[int]) -> None:
        other = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        tokens = other.tokens[: data.draw(st.integers(1, len(other.tokens)))] + extra
        self.admit(Mirror(other.namespace, tokens, len(tokens), True, 0, 0), True, 0, resumed=False)

    @precondition(lambda self: self.preempted)
    @rule()
    def resume(self) -> None:
        mirror = self.preempted[0]
        fresh = Mirror(mirror.namespace, mirror.tokens, len(mirror.tokens), mirror.publish, 0, 0)
        if self.admit(fresh, True, 0, resumed=True):
            self.preempted.pop(0)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.live)))
        mirror = self.live[sequence_id]
        before = self.manager.stats()
        short = self.manager.append(sequence_id, token)
        full = len(mirror.tokens) % self.block_tokens == 0
        assert short == int(full and before.free + before.cached == 0)
        if short:
            assert self.manager.stats() == before
        else:
            mirror.tokens.append(token)

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
        if mirror.publish:
            table = self.manager.block_table(sequence_id).tolist()
            for index in range(target // self.block_tokens):
                end = (index + 1) * self.block_tokens
                key = (mirror.namespace, tuple(mirror.tokens[:end]))
                # De-duplication: the first block that had these contents stays the only one.
                assert self.oracle.blocks.setdefault(key, table[index]) == table[index]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), as_preemption=st.booleans())
    def leave(self, data: st.DataObject, as_preemption: bool) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.live)))
        mirror = self.live.pop(sequence_id)
        if as_preemption:
            self.manager.preempt(sequence_id)
            self.preempted.append(mirror)
        else:
            assert self.manager.release(sequence_id)
        assert not self.manager.release(sequence_id)

    @rule(namespace=st.sampled_from([None, *NAMESPACES]))
    def flush(self, namespace: bytes | None) -> None:
        held = self.holders()
        gone = {
            key: block
            for key, block in self.oracle.blocks.items()
            if namespace is None or key[0] == namespace
        }
        result = self.manager.flush(namespace)
        kept = sum(block in held for block in gone.values())
        assert (result.dropped_blocks, result.kept_blocks) == (len(gone) - kept, kept)
        for key in gone:
            del self.oracle.blocks[key]
        for mirror in self.live.values():
            if namespace is None or mirror.namespace == namespace:
                mirror.publish = False

    # --- invariants ---

    @invariant()
    def books_balance(self) -> None:
        self.manager.audit()
        self.forget_evicted()
        held = self.holders()
        stats = self.manager.stats()
        assert stats.total == self.usable
        assert stats.held == len(held)
        assert stats.shared == sum(len(holders) >= 2 for holders in held.values())
        assert stats.cached == sum(block not in held for block in self.oracle.blocks.values())
        assert stats.free == self.usable - stats.held - stats.cached
        assert stats.pinned == stats.in_flight == 0
        assert stats.live_sequences == len(self.live)
        assert stats.hit_tokens == self.hit_tokens
        assert stats.resumed_hit_tokens == self.resumed_hit_tokens
        assert stats.lookup_tokens == self.lookup_tokens

    @invariant()
    def tables_point_at_the_right_contents(self) -> None:
        for sequence_id, mirror in self.live.items():
            assert self.manager.num_tokens(sequence_id) == len(mirror.tokens)
            assert self.manager.computed_tokens(sequence_id) == mirror.computed
            table = self.manager.block_table(sequence_id).tolist()
            assert 0 not in table
            for position in range(mirror.computed):
                slot = self.slot(sequence_id, position)
                assert self.content[slot] == tuple(mirror.tokens[: position + 1])


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCacheMachine.pytestmark = [pytest.mark.slow]
