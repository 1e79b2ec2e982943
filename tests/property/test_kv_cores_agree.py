"""The native core and its oracle in lock step: the same answers, errors, block numbers, figures.

Both are driven through the manager by operations of which some are wrong: unknown and live ids,
commits backwards and too far, stale plans, tokens that are no int32.
"""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_cores import needs_native

from kvcache import AdmissionRequest, CacheManager, Fits, IndexReplica
from kvcache.core import CoreChoice
from kvcache.errors import KVCacheError
from kvcache.eviction import PolicyName

NAMESPACES = (b"", b"red", b"a namespace too long for a short string")
CORES: tuple[CoreChoice, ...] = ("native", "python")
IDS = st.integers(0, 7)
MOSTLY = st.sampled_from([True, True, True, False])


def outcome(action: Callable[[], object]) -> object:
    """What a call answers, or the facts of its refusal."""
    try:
        return action()
    except KVCacheError as error:
        event(type(error).__name__)
        return type(error), str(error), vars(error)


class LockStep(RuleBasedStateMachine):
    """Two managers that must not be told apart."""

    @initialize(
        block_tokens=st.sampled_from([1, 2, 3, 5, 16]),
        usable=st.integers(1, 40),
        prompt_blocks=st.integers(1, 12),
        policy=st.sampled_from(["reuse-aware", "reuse-aware", "lru"]),
    )
    def start(self, block_tokens: int, usable: int, prompt_blocks: int, policy: PolicyName) -> None:
        self.managers = [
            CacheManager(usable + 1, block_tokens, policy=policy, core=core) for core in CORES
        ]
        assert [manager.core_name for manager in self.managers] == list(CORES)
        self.size = block_tokens
        self.longest = prompt_blocks * block_tokens
        self.plans: list[tuple[Fits, ...]] = []
        self.prompts: list[list[int]] = [[0]]

    def both(self, action: Callable[[CacheManager], object]) -> object:
        """Does the same with each; answers what both answered."""
        native, python = (
            outcome(lambda manager=manager: action(manager)) for manager in self.managers
        )
        assert native == python
        return native

    # --- admission ---

    def prompt(self, data: st.DataObject) -> list[int]:
        """A prefix of an earlier prompt, and something behind it."""
        known = data.draw(st.sampled_from(self.prompts))
        kept = known[: data.draw(st.integers(0, len(known)))]
        token = st.integers(0, 1)
        fresh = data.draw(st.lists(token, max_size=max(1, self.longest - len(kept))))
        tokens = kept + fresh or [0]
        if len(self.prompts) < 12:
            self.prompts.append(tokens)
        return tokens

    @rule(
        data=st.data(),
        sequence_id=IDS,
        namespace=st.sampled_from(NAMESPACES),
        use_cache=MOSTLY,
        publish=MOSTLY,
        headroom=st.sampled_from([0, 0, 0, 1, 5]),
        resumed=st.booleans(),
        begin=MOSTLY,
    )
    def arrive(
        self,
        data: st.DataObject,
        sequence_id: int,
        namespace: bytes,
        use_cache: bool,
        publish: bool,
        headroom: int,
        resumed: bool,
        begin: bool,
    ) -> None:
        request = AdmissionRequest(
            sequence_id,
            np.array(self.prompt(data), np.int32),
            namespace,
            use_cache,
            publish,
            headroom,
            resumed,
        )
        self.both(lambda manager: manager.pending_prefix(request))
        answer = self.both(lambda manager: manager.admit(request))
        if not isinstance(answer, Fits):
            event("NotNow or NeverFits")
            return
        plans = tuple(manager.admit(request) for manager in self.managers)
        if begin:
            self.begin(plans)
        else:
            self.plans.append(plans)

    @precondition(lambda self: self.plans)
    @rule()
    def begin_late(self) -> None:
        self.begin(self.plans.pop())

    def begin(self, plans: tuple[Fits, ...]) -> None:
        by_manager = dict(zip(map(id, self.managers), plans, strict=True))
        self.both(lambda manager: manager.begin(by_manager[id(manager)]))

    # --- live sequences; some of the ids are not live ---

    @rule(sequence_id=IDS, token_id=st.sampled_from([0, 1, 2**31 - 1, -(2**31), 2**31, -(2**40)]))
    def append(self, sequence_id: int, token_id: int) -> None:
        self.both(lambda manager: manager.append(sequence_id, token_id))

    @rule(sequence_id=IDS, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=40))
    def decode(self, sequence_id: int, tokens: list[int]) -> None:
        for token in tokens:
            if self.both(lambda manager, token=token: manager.append(sequence_id, token)) != 0:
                return
            self.both(lambda manager: manager.commit(sequence_id, manager.num_tokens(sequence_id)))

    @rule(sequence_id=IDS, share=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0, 1.0]))
    def compute(self, sequence_id: int, share: float) -> None:
        def commit(manager: CacheManager) -> None:
            done, all_tokens = manager.computed_tokens(sequence_id), manager.num_tokens(sequence_id)
            manager.commit(sequence_id, done + int(share * (all_tokens - done)))

        self.both(commit)

    @rule(sequence_id=IDS, computed=st.sampled_from([-1, 0, 3, 10**6, 2**63, -(2**63) - 1]))
    def commit(self, sequence_id: int, computed: int) -> None:
        self.both(lambda manager: manager.commit(sequence_id, computed))

    @rule(sequence_id=IDS)
    def release(self, sequence_id: int) -> None:
        self.both(lambda manager: manager.release(sequence_id))

    @rule(sequence_id=IDS)
    def preempt(self, sequence_id: int) -> None:
        self.both(lambda manager: manager.preempt(sequence_id))

    @rule(namespace=st.sampled_from([None, *NAMESPACES, b"never seen"]))
    def flush(self, namespace: bytes | None) -> None:
        self.both(lambda manager: manager.flush(namespace))

    # --- what can be seen ---

    @invariant()
    def everything_that_can_be_seen_is_the_same(self) -> None:
        for manager in self.managers:
            manager.audit()
        self.both(lambda manager: manager.stats())
        self.both(lambda manager: IndexReplica(manager.snapshot(), self.size).blocks)
        for sequence_id in range(9):
            self.both(lambda manager, i=sequence_id: manager.block_table(i).tolist())
            self.both(lambda manager, i=sequence_id: manager.num_tokens(i))
            self.both(lambda manager, i=sequence_id: manager.computed_tokens(i))
            self.both(lambda manager, i=sequence_id: manager.recompute_tokens(i))
        for namespace in NAMESPACES:
            for prompt in self.prompts:
                probe = np.array([*prompt, 0], np.int32)
                self.both(lambda manager, n=namespace, p=probe: manager.lookup(n, p))


TestLockStep = LockStep.TestCase
TestLockStep.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestLockStep.pytestmark = [pytest.mark.slow, needs_native]
