"""The native core and its oracle in lock step: the same answers, errors, block numbers, figures.

Both are driven directly, by operations of which some are wrong: unknown and live ids, groups that
are not those of the namespace, stale matches, commits backwards and too far, numbers beyond any
limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_cores import needs_native

from kvcache.core import NO_MATCH, CacheCore, HolderKind, PrefixMatch, Tokens
from kvcache.core.python_core import PythonCore
from kvcache.errors import ConservationError, KVCacheError

GROUP_OF = {b"": 0, b"red": 0, b"blue": 3, b"a namespace too long for a short string": 31}
GROUPS = (0, 3, 31)
NAMESPACES = tuple(GROUP_OF)
IDS = st.sampled_from([0, 1, 2, 3, 2**62])
MOSTLY = st.sampled_from([True, True, True, False])
RARELY = st.sampled_from([False] * 9 + [True])
FAR = [-1, 2**31, 2**63, -(2**63) - 1]


def outcome(action: Callable[[], object]) -> object:
    """What a call answers, or the facts of its refusal."""
    try:
        return action()
    except ConservationError:  # the faults of a match are found in another order
        event("ConservationError")
        return ConservationError
    except KVCacheError as error:
        event(type(error).__name__)
        return type(error), str(error), vars(error)


class LockStep(RuleBasedStateMachine):
    """Two cores that must not be told apart."""

    @initialize(
        block_tokens=st.sampled_from([1, 2, 3, 5, 16]),
        usable=st.integers(1, 30),
        prompt_blocks=st.integers(1, 12),
        reuse_weight=st.sampled_from([2, 2, 2, 1, 0]),
        protected_blocks=st.integers(0, 10),
        record_events=MOSTLY,
    )
    def start(
        self,
        block_tokens: int,
        usable: int,
        prompt_blocks: int,
        reuse_weight: int,
        protected_blocks: int,
        record_events: bool,
    ) -> None:
        from kvcache._native import NativeCore

        arguments = usable + 1, block_tokens, reuse_weight, protected_blocks, record_events
        self.cores: list[CacheCore] = [NativeCore(*arguments), PythonCore(*arguments)]
        self.size = block_tokens
        self.longest = prompt_blocks * block_tokens
        self.prompts: list[list[int]] = [[0]]
        self.matches: list[tuple[bytes, Tokens, PrefixMatch]] = []

    def both(self, action: Callable[[CacheCore], object]) -> Any:
        """Does the same with each; answers what both answered."""
        native, python = (outcome(lambda core=core: action(core)) for core in self.cores)
        assert native == python, (native, python)
        return native

    # --- holders begin ---

    def prompt(self, data: st.DataObject) -> list[int]:
        """A prefix of an earlier prompt, and something behind it."""
        known = data.draw(st.sampled_from(self.prompts))
        kept = known[: data.draw(st.integers(0, len(known)))]
        fresh = data.draw(st.lists(st.integers(0, 1), max_size=max(1, self.longest - len(kept))))
        tokens = kept + fresh or [0]
        if len(self.prompts) < 6:
            self.prompts.append(tokens)
        return tokens

    @rule(
        data=st.data(),
        holder_id=IDS,
        namespace=st.sampled_from(NAMESPACES),
        publish=MOSTLY,
        is_reuse=MOSTLY,
        level=st.sampled_from([0, 0, 0, 1, 2, 7]),
        is_whole=st.booleans(),
    )
    def begin_sequence(
        self,
        data: st.DataObject,
        holder_id: int,
        namespace: bytes,
        publish: bool,
        is_reuse: bool,
        level: int,
        is_whole: bool,
    ) -> None:
        tokens = np.array(self.prompt(data), np.int32)
        most = tokens.size if is_whole else (tokens.size - 1) // self.size
        match = self.both(lambda core: core.match(namespace, tokens, most))
        group = GROUP_OF[namespace]
        self.both(
            lambda core: core.begin(
                holder_id, namespace, tokens, publish, match, is_reuse, 0, group, level
            )
        )

    @rule(
        data=st.data(),
        holder_id=IDS,
        namespace=st.sampled_from(NAMESPACES),
        kind=st.sampled_from([kind for kind in HolderKind if kind is not HolderKind.SEQUENCE]),
        level=st.sampled_from([0, 0, 1, 3]),
        beyond_match=st.sampled_from([False, False, False, True]),
    )
    def begin_other(
        self,
        data: st.DataObject,
        holder_id: int,
        namespace: bytes,
        kind: HolderKind,
        level: int,
        beyond_match: bool,
    ) -> None:
        """Pins, stores and expectations of what is there, loads of what is not."""
        tokens = np.array(self.prompt(data), np.int32)
        match = self.both(lambda core: core.match(namespace, tokens, tokens.size))
        if kind is not HolderKind.LOAD and not beyond_match:
            tokens = tokens[: match[0] * self.size]
        group = GROUP_OF[namespace]
        publish = kind is HolderKind.LOAD
        self.both(
            lambda core: core.begin(
                holder_id, namespace, tokens, publish, match, False, kind, group, level
            )
        )

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        lives=st.lists(
            st.tuples(st.integers(2, 5), st.integers(1, 3), st.sampled_from([0, 0, 1, 2, 7])),
            min_size=1,
            max_size=8,
        ),
    )
    def serve(self, namespace: bytes, lives: list[tuple[int, int, int]]) -> None:
        """Whole lives, so that there is always something to hit and to evict."""
        for document, blocks, level in lives:
            tokens = np.array([document] * (blocks * self.size) + [0], np.int32)
            match = self.both(lambda core, t=tokens: core.match(namespace, t, 3))
            begin = 6, namespace, tokens, True, match, True, 0, GROUP_OF[namespace], level
            if self.both(lambda core, begin=begin: core.begin(*begin)) is None:
                self.both(lambda core, t=tokens: core.commit(6, t.size))
                self.both(lambda core: core.release(6))

    @rule(
        holder_id=IDS,
        namespace=st.sampled_from(NAMESPACES),
        kind=st.sampled_from([0, 4, 5, *FAR]),
        group=st.sampled_from([0, 3, 31, 32, *FAR]),
        level=st.sampled_from([0, 7, 8, *FAR]),
    )
    def begin_wrong(
        self, holder_id: int, namespace: bytes, kind: int, group: int, level: int
    ) -> None:
        if GROUP_OF[namespace] == group:
            group = 1  # else the others could not begin there any more
        known = self.both(lambda core: core.namespace_group(namespace))
        if known < 0 and 0 <= group < 32:
            return
        tokens = np.zeros(self.size, np.int32)
        self.both(
            lambda core: core.begin(
                holder_id, namespace, tokens, True, NO_MATCH, False, kind, group, level
            )
        )

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES))
    def remember_a_match(self, data: st.DataObject, namespace: bytes) -> None:
        tokens = np.array(self.prompt(data), np.int32)
        match = self.both(lambda core: core.match(namespace, tokens, tokens.size))
        self.matches.append((namespace, tokens, match))

    @precondition(lambda self: self.matches)
    @rule(holder_id=IDS)
    def begin_late(self, holder_id: int) -> None:
        namespace, tokens, match = self.matches.pop()
        group = GROUP_OF[namespace]
        self.both(
            lambda core: core.begin(holder_id, namespace, tokens, True, match, True, 0, group, 0)
        )

    @rule(parent_id=IDS, child_id=IDS)
    def fork(self, parent_id: int, child_id: int) -> None:
        self.both(lambda core: core.fork(parent_id, child_id))

    # --- live holders; some of the ids are not live ---

    @rule(holder_id=IDS, token_id=st.sampled_from([0, 1, 2**31 - 1, -(2**31), 2**31, -(2**40)]))
    def append(self, holder_id: int, token_id: int) -> None:
        self.both(lambda core: core.append(holder_id, token_id))

    @rule(holder_id=IDS, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=40))
    def decode(self, holder_id: int, tokens: list[int]) -> None:
        for token in tokens:
            if self.both(lambda core, token=token: core.append(holder_id, token)) != 0:
                return
            self.both(lambda core: core.commit(holder_id, core.num_tokens(holder_id)))

    @rule(holder_id=IDS, share=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0, 1.0]))
    def compute(self, holder_id: int, share: float) -> None:
        def commit(core: CacheCore) -> None:
            done, all_tokens = core.computed_tokens(holder_id), core.num_tokens(holder_id)
            core.commit(holder_id, done + int(share * (all_tokens - done)))

        self.both(commit)

    @rule(holder_id=IDS, computed=st.sampled_from([0, 3, 10**6, *FAR]))
    def commit(self, holder_id: int, computed: int) -> None:
        self.both(lambda core: core.commit(holder_id, computed))

    @rule(holder_id=IDS)
    def release(self, holder_id: int) -> None:
        self.both(lambda core: core.release(holder_id))

    # --- what is kept ---

    @rule(
        group=st.sampled_from([*GROUPS, *GROUPS, 32, -1]),
        floor_blocks=st.sampled_from([0, 0, 1, 3, 8, -1]),
        quota_blocks=st.sampled_from([-1, -1, 0, 2, 5, 20, -2]),
    )
    def set_group(self, group: int, floor_blocks: int, quota_blocks: int) -> None:
        self.both(lambda core: core.set_group(group, floor_blocks, quota_blocks))

    @rule(level=st.sampled_from([1, 1, 2, 3, 7, 0, 8]), back=st.sampled_from([0, 1, 3, -1, 2**63]))
    def set_expiry(self, level: int, back: int) -> None:
        self.both(lambda core: core.set_expiry(level, core.ticks - back))

    @rule(back=st.integers(0, 4))
    def let_all_levels_expire(self, back: int) -> None:
        for level in range(1, 8):
            self.both(lambda core, level=level: core.set_expiry(level, core.ticks - back))

    @rule(count=st.sampled_from([0, 1, 1, 2, 5, *FAR]))
    def evict(self, count: int) -> None:
        self.both(lambda core: core.evict(count))

    @rule(usable=st.integers(1, 45), is_wrong=RARELY)
    def resize(self, usable: int, is_wrong: bool) -> None:
        self.both(lambda core: core.resize(1 - usable if is_wrong else usable + 1))

    @rule(namespace=st.sampled_from([None, *NAMESPACES, b"never seen"]), really=RARELY)
    def flush(self, namespace: bytes | None, really: bool) -> None:
        if really:
            self.both(lambda core: core.flush(namespace))

    # --- what happened ---

    @rule()
    def drain_events(self) -> None:
        for told in self.both(lambda core: core.drain_events()):
            event(f"event {told[0]}")

    @rule()
    def drain_samples(self) -> None:
        for sample in self.both(lambda core: core.drain_samples()):
            event(f"sample {sample[0]}")

    @rule(is_wanted=MOSTLY)
    def record_events(self, is_wanted: bool) -> None:
        for core in self.cores:
            core.record_events = is_wanted

    def teardown(self) -> None:
        if hasattr(self, "cores"):
            self.drain_events()
            self.drain_samples()

    # --- what can be seen ---

    @invariant()
    def everything_that_can_be_seen_is_the_same(self) -> None:
        for core in self.cores:
            core.check()
            core.audit()
        self.both(lambda core: core.counts())
        self.both(lambda core: (core.version, core.ticks, core.live_sequences))
        self.both(lambda core: (core.highest_used(), core.record_events))
        self.both(lambda core: core.largest_holders(3))
        for group in (*GROUPS, 1, 32):
            self.both(lambda core, g=group: core.available_blocks(g))
            self.both(lambda core, g=group: core.group_counts(g))
        self.both(lambda core: sorted(core.runs(), key=lambda run: run[2]))

    @invariant()
    def every_holder_is_the_same(self) -> None:
        for holder_id in (0, 1, 2, 3, 6, 2**62):
            self.both(lambda core, i=holder_id: bytes(core.block_table(i)))
            self.both(lambda core, i=holder_id: bytes(core.tokens(i)))
            self.both(lambda core, i=holder_id: (core.num_tokens(i), core.computed_tokens(i)))
            self.both(lambda core, i=holder_id: core.exclusive_blocks(i))
            self.both(lambda core, i=holder_id: core.is_live(i))

    @invariant()
    def every_lookup_is_the_same(self) -> None:
        documents = [[document] * (3 * self.size) for document in (2, 5)]
        for namespace in NAMESPACES:
            self.both(lambda core, n=namespace: core.namespace_group(n))
            for prompt in (*self.prompts, *documents):
                tokens = np.array([*prompt, 0], np.int32)
                most = tokens.size // self.size
                match = self.both(lambda core, n=namespace, t=tokens: core.match(n, t, 2**40))
                for found in (match, NO_MATCH):
                    self.both(
                        lambda core, n=namespace, t=tokens, f=found: (
                            core.partial_match(n, t, f),
                            core.forgotten_blocks(n, t, f, t.size),
                        )
                    )
                self.both(
                    lambda core, n=namespace, t=tokens, m=most: (
                        core.pending_blocks(n, t, m),
                        core.begins_elsewhere(n, t),
                    )
                )


TestLockStep = LockStep.TestCase
TestLockStep.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestLockStep.pytestmark = [pytest.mark.slow, needs_native]
