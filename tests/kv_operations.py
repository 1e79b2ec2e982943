"""What a scheduler does with a cache manager, each operation with its prediction.

Sequences are `Mirror`s in one of these states: waiting (perhaps with a plan, perhaps stale),
live, gone. What is held beside sequences is in `kv_holds`.
"""

from __future__ import annotations

import pytest
from kv_model import Hold, digests_of
from kv_world import Mirror, World

from kvcache import Fits, NeverFits, NotNow
from kvcache.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    OutOfBlocksError,
    StalePlanError,
    UnknownSequenceError,
)


class Sequences(World):
    """One call each; every one leaves the world settled."""

    # --- admission -----------------------------------------------------------

    def admit(self, mirror: Mirror) -> Fits | NotNow | NeverFits:
        """Asks, and compares the answer; a plan is kept for `begin`."""
        self.tenant_of[mirror.namespace] = mirror.tenant
        request = mirror.request()
        needed, limit = self.blocks_for(len(mirror.tokens)), self.limit_blocks(mirror.tenant)
        lapsed = self.lapse() if needed <= limit and self.short(mirror) > 0 else 0
        before = self.manager.stats()
        answer = self.manager.admit(request)
        assert lapsed or self.manager.stats() == before, "admit is pure"
        if lapsed:
            self.settle()
        hits, short = self.hits(mirror), self.short(mirror)
        if needed > limit:
            assert answer == NeverFits(needed, self.usable, limit * self.size)
            return answer
        if short > 0:
            assert isinstance(answer, NotNow)
            assert answer.short_blocks == short
            is_used = self.live or any(hold.kind != "expect" for hold in self.holds.values())
            assert is_used, "an idle pool admits all that can ever fit"
            lengths = [len(self.tables[holder]) for holder in answer.holders]
            assert lengths == sorted(lengths, reverse=True)
            return answer
        assert isinstance(answer, Fits)
        assert answer.new_blocks == needed - len(hits)
        self.check_hits(mirror, answer.cached_tokens, self.longest_copy(mirror))
        mirror.plan = answer
        return answer

    def longest_copy(self, mirror: Mirror) -> int:
        """The most tokens that a copy of a block can save behind the hits."""
        hit_blocks = len(self.hits(mirror))
        if self.partial is None or not mirror.use_cache:
            return 0
        return self.index.longest_partial(mirror.namespace, mirror.tokens, hit_blocks)

    def check_hits(self, mirror: Mirror, cached_tokens: int, longest_copy: int) -> None:
        """All whole blocks there are, and of the next one no more than there is."""
        whole = len(self.hits(mirror)) * self.size
        assert whole <= cached_tokens < len(mirror.tokens)
        partial = cached_tokens - whole
        assert partial == 0 or (self.partial or 0) <= partial <= longest_copy

    def begin(self, mirror: Mirror) -> bool:
        """Starts a sequence by its plan, fresh or stale; False if it does not fit any more."""
        assert mirror.plan is not None
        plan, mirror.plan = mirror.plan, None
        needed, limit = self.blocks_for(len(mirror.tokens)), self.limit_blocks(mirror.tenant)
        if mirror.sequence_id in self.live:
            with pytest.raises(DuplicateSequenceError):
                self.manager.begin(plan)
            self.settle()
            return False
        if needed <= limit and self.short(mirror) > 0:
            self.lapse()
        if needed > limit or self.short(mirror) > 0:
            with pytest.raises(StalePlanError):
                self.manager.begin(plan)
            self.settle()
            return False
        hits, used = self.hits(mirror), self.firmly_held()
        copies, longest_copy = self.memory.copied_blocks, self.longest_copy(mirror)
        cached = self.manager.begin(plan)
        self.check_hits(mirror, cached, longest_copy)
        assert self.memory.copied_blocks - copies == int(cached > len(hits) * self.size)
        table = self.manager.block_table(mirror.sequence_id).tolist()
        assert table[: len(hits)] == hits
        assert not used & set(table[len(hits) :]), "a held block was given away"
        self.begin_anew(table[len(hits) :])
        mirror.computed = cached
        mirror.digests = digests_of(mirror.tokens, self.index.root(mirror.namespace))
        self.live[mirror.sequence_id] = mirror
        self.settle(
            new_blocks=needed - len(hits), tenant=mirror.tenant, begun_id=mirror.sequence_id
        )
        return True

    def start(self, mirror: Mirror) -> bool:
        """Admits and begins, as a scheduler does it."""
        return isinstance(self.admit(mirror), Fits) and self.begin(mirror)

    # --- a live sequence -----------------------------------------------------

    def append(self, mirror: Mirror, token: int) -> bool:
        """One token more; False when there is no block for it."""
        needs_block = len(mirror.tokens) % self.size == 0
        if needs_block and self.available(mirror.tenant) == 0:
            self.lapse()
        short = int(needs_block and self.available(mirror.tenant) == 0)
        assert self.manager.append(mirror.sequence_id, token) == short
        if not short:
            mirror.add(token)
        if needs_block:
            if not short:
                self.begin_anew(self.manager.block_table(mirror.sequence_id)[-1:].tolist())
            self.settle(new_blocks=1 - short, tenant=mirror.tenant)
        return not short

    def commit(self, mirror: Mirror, computed: int) -> None:
        """Writes K and V up to `computed` where the block table says, and tells the manager."""
        table = self.tables[mirror.sequence_id]
        for position in range(mirror.computed, computed):
            block, slot = table[position // self.size], position % self.size
            self.memory.slots[block, slot] = mirror.digests[position]
        self.manager.commit(mirror.sequence_id, computed)
        mirror.computed = computed
        self.settle()
        if mirror.publish:
            table = self.tables[mirror.sequence_id]
            for number in range(computed // self.size):
                end = (number + 1) * self.size
                key = mirror.namespace, tuple(mirror.tokens[:end])
                assert self.index.block_of[key] == table[number], "computed, but not shared"

    def fork(self, parent: Mirror, child_id: int) -> Mirror | None:
        """A second sequence that shares what is computed; None when there is no room."""
        own_blocks = len(self.tables[parent.sequence_id]) - parent.computed // self.size
        if parent.computed < len(parent.tokens) - 1:
            expected: type[Exception] | None = InvalidArgumentError
        elif own_blocks > self.available(parent.tenant):
            expected = OutOfBlocksError
        else:
            expected = None
        if expected is not None:
            with pytest.raises(expected):
                self.manager.fork(parent.sequence_id, child_id)
            self.settle()
            return None
        self.manager.fork(parent.sequence_id, child_id)
        child = Mirror(
            child_id,
            parent.namespace,
            list(parent.tokens),
            tenant=parent.tenant,
            retention=parent.retention,
            publish=parent.publish,
            computed=parent.computed,
            digests=parent.digests.copy(),
        )
        self.live[child_id] = child
        self.begin_anew(self.manager.block_table(child_id)[parent.computed // self.size :].tolist())
        self.forks += 1
        self.settle(new_blocks=own_blocks, tenant=parent.tenant)
        shared = parent.computed // self.size
        parents, childs = self.tables[parent.sequence_id], self.tables[child_id]
        assert parents[:shared] == childs[:shared]
        assert not set(parents[shared:]) & set(childs[shared:]), "both would write to one slot"
        return child

    def release(self, mirror: Mirror) -> None:
        """Ends a sequence in whatever state it is; a second time does nothing."""
        was_live = self.live.pop(mirror.sequence_id, None) is not None
        self.tables.pop(mirror.sequence_id, None)
        assert self.manager.release(mirror.sequence_id) == was_live
        assert not self.manager.release(mirror.sequence_id)
        self.settle()

    def forget(self, mirror: Mirror) -> None:
        """Ends a request that is not live: its expectation and its kept prefix go."""
        self.holds.pop(("expect", mirror.sequence_id), None)
        self.holds.pop(("kept", mirror.sequence_id), None)
        self.manager.unexpect(mirror.sequence_id)
        self.manager.forget(mirror.sequence_id)
        mirror.plan = None
        self.settle()

    def preempt(self, mirror: Mirror, keep_blocks: int, *, swapped: bool = False) -> None:
        """Takes the blocks back but for a leading part; the sequence may come again."""
        table = self.tables.pop(mirror.sequence_id)
        del self.live[mirror.sequence_id]
        most = min(keep_blocks, mirror.computed // self.size)
        kept = self.index.match(mirror.namespace, [*mirror.tokens, 0])[:most]
        if kept and table[len(kept) - 1] != kept[-1]:
            kept = []  # computed beside what the index has
        self.manager.preempt(mirror.sequence_id, keep_blocks=keep_blocks, swapped=swapped)
        self.preemptions += 1
        if kept:
            tokens = tuple(mirror.tokens[: len(kept) * self.size])
            hold = Hold(mirror.namespace, tokens, kept, "expect")
            self.holds["kept", mirror.sequence_id] = hold
        with pytest.raises(UnknownSequenceError):
            self.manager.preempt(mirror.sequence_id)
        mirror.resumed, mirror.computed = True, 0
        self.settle()
