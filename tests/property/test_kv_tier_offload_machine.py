"""Device, host and two stores that stall, fail, lose and delay: no block ever has wrong bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kv_tier_blocks import BLOCK_TOKENS, contents
from kv_tier_engine import DEVICE_BLOCKS, LEASE_SECONDS, LIMITS, Engine, Tokens
from kv_tier_fakes import Clock, FakeTier, until

from kvcache import AdmissionRequest, Fits
from kvcache.errors import PoolInUseError
from kvcache.tiers import TierError, Transfer

DISK = 0
NAMESPACES = (b"", b"a")
namespaces = st.sampled_from(NAMESPACES)
sizes = st.integers(1, 7)
branches = st.integers(0, 2)
numbers = st.integers(0, 100)


def prompt_of(blocks: int, branch: int) -> Tokens:
    """Prompts of one branch are prefixes of each other; all branches share two blocks."""
    tokens = np.arange(blocks * BLOCK_TOKENS + 1, dtype=np.int32)
    tokens[2 * BLOCK_TOKENS :] += 1000 * branch
    return tokens


class OffloadMachine(RuleBasedStateMachine):
    """After a flush the model computes other K and V: what is older would be wrong bytes."""

    @initialize(host_blocks=st.integers(1, 20))
    def open(self, host_blocks: int) -> None:
        self.clock = Clock()
        self.stores = [FakeTier(), FakeTier()]
        disk, remote = self.stores
        self.engine = Engine(self.clock, host_blocks=host_blocks, disk=disk, remote=remote)
        self.manager, self.offload = self.engine.manager, self.engine.offload
        self.running: list[int] = []
        self.swapped: list[int] = []
        self.transfers: list[Transfer] = []

    def fits(self, tokens: Tokens, namespace: bytes) -> bool:
        answer = self.manager.admit(AdmissionRequest(10**6, tokens, namespace))
        return isinstance(answer, Fits)

    # --- requests ----------------------------------------------------------------

    @rule(blocks=sizes, branch=branches, namespace=namespaces, stays=st.booleans())
    def run(self, blocks: int, branch: int, namespace: bytes, stays: bool) -> None:
        tokens = prompt_of(blocks, branch)
        if not self.fits(tokens, namespace):
            return
        sequence = self.engine.start(tokens, namespace)
        if stays:
            self.running.append(sequence)
        else:
            self.manager.release(sequence)

    @rule(which=numbers)
    def finish(self, which: int) -> None:
        if self.running:
            self.manager.release(self.running.pop(which % len(self.running)))

    @rule(which=numbers)
    def swap(self, which: int) -> None:
        if self.running:
            sequence = self.running.pop(which % len(self.running))
            whole = self.manager.computed_tokens(sequence) // BLOCK_TOKENS * BLOCK_TOKENS
            kept = self.offload.swap_out(sequence)
            assert kept in (0, whole)
            self.manager.preempt(sequence)
            if kept:
                self.swapped.append(sequence)

    @rule(which=numbers)
    def come_back(self, which: int) -> None:
        if self.swapped:
            self.offload.forget(self.swapped.pop(which % len(self.swapped)))

    # --- transfers ---------------------------------------------------------------

    @rule(blocks=sizes, branch=branches, namespace=namespaces)
    def prefetch(self, blocks: int, branch: int, namespace: bytes) -> None:
        transfer = self.offload.prefetch(namespace, prompt_of(blocks, branch))
        if transfer is not None:
            self.transfers.append(transfer)

    @rule()
    def poll(self) -> None:
        self.offload.poll()

    @rule()
    def settle(self) -> None:
        """Lets the threads do what they can before the step."""
        for worker in self.offload._below:
            worker.flush(0.01)
        self.offload.poll()

    @rule(which=numbers)
    def cancel(self, which: int) -> None:
        if self.transfers:
            self.offload.cancel(self.transfers.pop(which % len(self.transfers)))

    @rule(seconds=st.sampled_from([0.1, LIMITS.probe_seconds, LEASE_SECONDS / 2, LEASE_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def expire(self) -> None:
        self.manager.expire()

    # --- trouble -----------------------------------------------------------------

    @rule(store=st.integers(0, 1), kind=st.sampled_from(["look", "read", "put", "drop"]))
    def stall(self, store: int, kind: str) -> None:
        if store != DISK or kind != "look":  # a disk tier knows what it has
            self.stores[store].gate(kind).clear()

    @rule(store=st.integers(0, 1), reads_early=st.booleans())
    def go_on(self, store: int, reads_early: bool) -> None:
        self.stores[store].reads_early = reads_early
        self.stores[store].open_all()

    @rule(store=st.integers(0, 1), is_down=st.booleans())
    def break_or_mend(self, store: int, is_down: bool) -> None:
        self.stores[store].error = TierError("fake", "down") if is_down else None

    @rule(namespace=st.sampled_from([*NAMESPACES, None]))
    def flush(self, namespace: bytes | None) -> None:
        self.manager.flush(namespace)
        for one in NAMESPACES:
            if namespace in (None, one):
                self.engine.versions[one] += 1

    @rule(blocks=st.integers(2, DEVICE_BLOCKS))
    def resize(self, blocks: int) -> None:
        try:
            self.manager.resize(blocks + 1)
        except PoolInUseError:
            return

    # --- what holds at every moment ----------------------------------------------

    @invariant()
    def every_block_has_its_bytes(self) -> None:
        self.manager.check()
        for block, key in self.offload._keys:
            expected = contents(key, self.engine.versions[key.namespace])
            assert bytes(self.engine.memory.read(block)) == expected
        host = self.engine.host
        for entry in host._entries.values():
            expected = contents(entry.key, self.engine.versions[entry.key.namespace])
            assert bytes(host._view(entry.slot)) == expected
        held = len(host._evictable) + sum(entry.is_kept for entry in host._entries.values())
        assert held == len(host._entries)
        assert len(host._entries) + len(host._free) <= host.num_slots

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for store in self.stores:
            store.error = None
            store.open_all()
        self.clock.advance(10 * LEASE_SECONDS)
        until(lambda: self.offload.poll() is not None and len(self.offload._loads) == 0)
        assert all(transfer.is_over for transfer in self.transfers)
        for sequence in self.running:
            self.manager.release(sequence)
        for sequence in self.swapped:
            self.offload.forget(sequence)
        self.manager.audit()
        stats, host = self.manager.stats(), self.engine.host
        assert stats.loading == stats.held == 0
        assert host.pinned_blocks == 0
        assert len(host._evictable) + len(host._free) == host.num_slots
        self.clock.advance(1000)
        assert all(worker.flush(120) for worker in self.offload._below)
        self.offload.close()


TestOffloadMachine = OffloadMachine.TestCase
TestOffloadMachine.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
