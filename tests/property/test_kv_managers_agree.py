"""Managers over the two cores in lock step, by all that a scheduler can ask of them.

What the cores do is compared in test_kv_cores_agree; here, that nothing which a manager reads off
its core, such as the order of what it is told, differs between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kv_cores import needs_native

from kvcache import AdmissionRequest, CacheManager, EventLog, Fits, IndexReplica, TenantShare
from kvcache.core import CoreChoice
from kvcache.errors import KVCacheError

CORES: tuple[CoreChoice, ...] = ("native", "python")
TENANT_OF = {b"": "", b"red": "gold", b"blue": "bounded"}
IDS = st.integers(0, 7)
NAMESPACES = st.sampled_from(list(TENANT_OF))
MOSTLY = st.sampled_from([True, True, True, False])
SECONDS = st.sampled_from([1.0, 10.0])


def outcome(action: Callable[[], object]) -> object:
    """What a call answers, or the facts of its refusal."""
    try:
        return action()
    except KVCacheError as error:
        event(type(error).__name__)
        return type(error), str(error), vars(error)


class ManagersInLockStep(RuleBasedStateMachine):
    """Two managers that must not be told apart."""

    @initialize(
        block_tokens=st.sampled_from([1, 2, 3, 5, 16]),
        usable=st.integers(6, 40),
        prompt_blocks=st.integers(1, 12),
    )
    def start(self, block_tokens: int, usable: int, prompt_blocks: int) -> None:
        self.now = 0.0
        shares = {"gold": TenantShare(floor_blocks=2), "bounded": TenantShare(quota_blocks=4)}
        self.logs = [EventLog(), EventLog()]
        self.managers = [
            CacheManager(
                usable + 1,
                block_tokens,
                core=core,
                events=log,
                tenants=shares,
                retention_ttl_seconds=(5.0, 5.0, 9.0, 9.0, 20.0, None, None, None),
                clock=lambda: self.now,
            )
            for core, log in zip(CORES, self.logs, strict=True)
        ]
        assert [manager.core_name for manager in self.managers] == list(CORES)
        self.size = block_tokens
        self.longest = prompt_blocks * block_tokens
        self.prompts: list[list[int]] = [[0]]
        self.lease_ids: list[int] = [0]

    def both(self, action: Callable[[CacheManager], object]) -> Any:
        """Does the same with each; answers what both answered."""
        native, python = (
            outcome(lambda manager=manager: action(manager)) for manager in self.managers
        )
        assert native == python, (native, python)
        return native

    def prompt(self, data: st.DataObject) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """A prefix of an earlier prompt, and something behind it."""
        known = data.draw(st.sampled_from(self.prompts))
        kept = known[: data.draw(st.integers(0, len(known)))]
        fresh = data.draw(st.lists(st.integers(0, 1), max_size=max(1, self.longest - len(kept))))
        tokens = kept + fresh or [0]
        if len(self.prompts) < 8:
            self.prompts.append(tokens)
        return np.array(tokens, np.int32)

    # --- sequences ---

    @rule(
        data=st.data(),
        sequence_id=IDS,
        namespace=NAMESPACES,
        use_cache=MOSTLY,
        publish=MOSTLY,
        headroom=st.sampled_from([0, 0, 1, 5]),
        resumed=st.booleans(),
        retention=st.sampled_from([0, 0, 1, 4]),
        waits=st.sampled_from([False, False, True]),
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
        retention: int,
        waits: bool,
    ) -> None:
        request = AdmissionRequest(
            sequence_id,
            self.prompt(data),
            namespace,
            use_cache,
            publish,
            headroom,
            resumed,
            TENANT_OF[namespace],
            retention,
        )
        self.both(lambda manager: manager.pending_prefix(request))
        if waits:
            self.both(lambda manager: manager.expect(request))
            return

        def begin(manager: CacheManager) -> object:
            answer = manager.admit(request)
            return manager.begin(answer) if isinstance(answer, Fits) else answer

        self.both(begin)

    @rule(sequence_id=IDS, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=40))
    def decode(self, sequence_id: int, tokens: list[int]) -> None:
        for token in tokens:
            if self.both(lambda manager, token=token: manager.append(sequence_id, token)) != 0:
                return
            self.both(lambda manager: manager.commit(sequence_id, manager.num_tokens(sequence_id)))

    @rule(sequence_id=IDS)
    def compute(self, sequence_id: int) -> None:
        self.both(lambda manager: manager.commit(sequence_id, manager.num_tokens(sequence_id)))

    @rule(parent_id=IDS, child_id=IDS)
    def fork(self, parent_id: int, child_id: int) -> None:
        self.both(lambda manager: manager.fork(parent_id, child_id))

    @rule(sequence_id=IDS)
    def release(self, sequence_id: int) -> None:
        self.both(lambda manager: manager.release(sequence_id))

    @rule(sequence_id=IDS, keep_blocks=st.sampled_from([0, 1, 3]))
    def preempt(self, sequence_id: int, keep_blocks: int) -> None:
        self.both(lambda manager: manager.preempt(sequence_id, keep_blocks=keep_blocks))

    @rule(sequence_id=IDS)
    def forget(self, sequence_id: int) -> None:
        self.both(lambda manager: manager.forget(sequence_id))

    # --- pins and transfers ---

    @rule(data=st.data(), namespace=NAMESPACES, seconds=SECONDS)
    def pin(self, data: st.DataObject, namespace: bytes, seconds: float) -> None:
        tokens = self.prompt(data)
        pin = self.both(lambda manager: manager.pin(namespace, tokens, seconds))
        self.lease_ids.append(getattr(pin, "pin_id", 0))

    @rule(data=st.data(), namespace=NAMESPACES, seconds=SECONDS, stores=st.booleans())
    def transfer(self, data: st.DataObject, namespace: bytes, seconds: float, stores: bool) -> None:
        tokens, tenant = self.prompt(data), TENANT_OF[namespace]

        def begin(manager: CacheManager) -> object:
            if stores:
                lease: Any = manager.begin_store(namespace, tokens, seconds)
            else:
                lease = manager.begin_load(namespace, tokens, seconds, tenant)
            return None if lease is None else (lease.lease_id, list(lease.blocks))

        lease = self.both(begin)
        if lease is not None and isinstance(lease[0], int):
            self.lease_ids.append(lease[0])

    @rule(data=st.data(), blocks=st.integers(0, 3))
    def finish_load(self, data: st.DataObject, blocks: int) -> None:
        lease_id = data.draw(st.sampled_from(self.lease_ids))
        self.both(lambda manager: manager.finish_load(lease_id, blocks * self.size))

    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(self.lease_ids))
        self.both(lambda manager: (manager.unpin(lease_id), manager.end_lease(lease_id)))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.both(lambda manager: manager.expire())

    # --- the whole ---

    @rule(usable=st.integers(2, 45))
    def resize(self, usable: int) -> None:
        self.both(lambda manager: manager.resize(usable + 1))

    @rule(namespace=st.sampled_from([None, *TENANT_OF]), really=st.sampled_from([False, True]))
    def flush(self, namespace: bytes | None, really: bool) -> None:
        if really:
            self.both(lambda manager: manager.flush(namespace))

    @invariant()
    def everything_that_can_be_seen_is_the_same(self) -> None:
        for manager in self.managers:
            manager.audit()
        self.both(lambda manager: manager.stats())
        self.both(lambda manager: manager.fragmentation())
        self.both(lambda manager: manager.histograms())
        for tenant in TENANT_OF.values():
            self.both(lambda manager, tenant=tenant: manager.tenant_stats(tenant))
        self.both(lambda manager: IndexReplica(manager.snapshot(), self.size).blocks)
        native, python = (log.since(max(0, log.last_number - 10)) for log in self.logs)
        assert native == python
        for sequence_id in range(8):
            self.both(lambda manager, i=sequence_id: manager.block_table(i).tolist())
            self.both(lambda manager, i=sequence_id: manager.exclusive_blocks(i))


TestManagersInLockStep = ManagersInLockStep.TestCase
TestManagersInLockStep.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestManagersInLockStep.pytestmark = [pytest.mark.slow, needs_native]
