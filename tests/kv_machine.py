"""Random lives of sequences, pins and transfers on one manager: the rules of the state machine."""

from __future__ import annotations

from typing import TypeVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from kv_offloads import TieredOperations
from kv_world import Mirror

from kvcache.core import CoreChoice
from kvcache.errors import InvalidArgumentError, UnknownSequenceError
from kvcache.leases import LoadLease
from kvcache.tenants import TenantShare

T = TypeVar("T")
TENANT_OF = {b"red": "", b"rust": "", b"blue": "warm", b"green": "batch"}
BLOCK_TOKENS = st.one_of(st.sampled_from([1, 2, 3, 4, 5, 16]), st.integers(1, 256))
EIGHTHS = st.sampled_from([8, 8, 8, 4, 5, 1, 0])
PICK = st.integers(0, 15)  # one of a list, modulo its length
PIECES = st.lists(st.integers(0, 2), max_size=4)  # a block of equal tokens each
RETENTION = st.sampled_from([0, 0, 1, 7])
SECONDS = st.integers(1, 4)
THEN = st.sampled_from(["serve", "run", "run", "start", "expect", "expect", "admit", "wait"])


def pick(choices: list[T], number: int) -> T:
    return choices[number % len(choices)]


class EverythingMachine(RuleBasedStateMachine):
    """Every rule is one call of a scheduler, an operator or a tier, whatever the state."""

    core: CoreChoice = "python"
    steps = 0  # of all runs of the class
    taken = 0  # steps of this run

    @initialize(
        block_tokens=BLOCK_TOKENS,
        usable=st.integers(2, 16),
        policy=st.sampled_from(["reuse-aware", "lru"]),
        shares=st.sampled_from(["none", "floor", "quota", "both"]),
        ttl_seconds=st.sampled_from([None, 2.0]),
        partial_reuse_tokens=st.sampled_from([1, 1, 2, None]),
        host_blocks=st.sampled_from([0, 0, 3, 40, 40, 40]),
    )
    def start_world(
        self,
        block_tokens: int,
        usable: int,
        policy: str,
        shares: str,
        ttl_seconds: float | None,
        partial_reuse_tokens: int | None,
        host_blocks: int,
    ) -> None:
        if block_tokens > 32:
            usable = 2 + usable % 5  # few tokens altogether: the steps shall be many
        floor = TenantShare(floor_blocks=usable // 3 if shares in ("floor", "both") else 0)
        quota = TenantShare(quota_blocks=1 + usable // 2 if shares in ("quota", "both") else None)
        self.world = TieredOperations(
            usable,
            block_tokens,
            core=self.core,
            policy="lru" if policy == "lru" else "reuse-aware",
            tenants={} if shares == "none" else {"warm": floor, "batch": quota},
            retention_ttl_seconds=(ttl_seconds,) * 7 + (None,),
            partial_reuse_tokens=partial_reuse_tokens,
            audit_every=4,
        )
        self.has_host = host_blocks > 0
        if self.has_host:
            self.world.add_host(host_blocks, blocks_a_poll=2)
        self.flushed_at = self.resized_at = self.next_id = 0
        self.waiting: list[Mirror] = []
        self.ended: list[Mirror] = []
        self.prompts: list[tuple[bytes, list[int]]] = [(b"red", [0])]
        self.loads: list[LoadLease] = []
        self.pins: list[int] = []
        self.stores: list[int] = []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            type(self).steps += self.taken - 1
            self.world.manager.audit()

    def check_invariants(self, *args: object, **kwargs: object) -> None:
        """Called after every step, and once before the first."""
        self.taken += 1
        super().check_invariants(*args, **kwargs)

    def tokens(self, pieces: list[int], tail: int) -> list[int]:
        size = self.world.size
        return [token for piece in pieces for token in [piece] * size] + [1] * (tail % size)

    def is_live(self) -> bool:
        return bool(self.world.live)

    def sequence(self, number: int) -> Mirror:
        return pick(list(self.world.live.values()), number)

    # --- sequences ---

    @rule(
        namespace=st.sampled_from([b"red", b"red", b"red", b"rust", b"blue", b"blue", b"green"]),
        pieces=PIECES,
        tail=PICK,
        use_cache=st.sampled_from([True, True, True, False]),
        publish=st.sampled_from([True, True, True, False]),
        headroom=st.sampled_from([0, 0, 1, 2]),
        retention=RETENTION,
        then=THEN,
    )
    def arrive(
        self,
        namespace: bytes,
        pieces: list[int],
        tail: int,
        use_cache: bool,
        publish: bool,
        headroom: int,
        retention: int,
        then: str,
    ) -> None:
        mirror = Mirror(
            self.next_id,
            namespace,
            self.tokens(pieces, tail) or [2],
            TENANT_OF[namespace],
            retention,
            use_cache,
            publish,
            headroom,
        )
        self.ask(mirror, then)

    @rule(like=PICK, eighths=EIGHTHS, pieces=PIECES, tail=PICK, retention=RETENTION, then=THEN)
    def arrive_alike(
        self, like: int, eighths: int, pieces: list[int], tail: int, retention: int, then: str
    ) -> None:
        namespace, prompt = pick(self.prompts, like)
        tokens = prompt[: -(-len(prompt) * eighths // 8)] + self.tokens(pieces, tail) or [2]
        self.ask(Mirror(self.next_id, namespace, tokens, TENANT_OF[namespace], retention), then)

    @rule(like=PICK, then=THEN)
    def arrive_again(self, like: int, then: str) -> None:
        namespace, prompt = pick(self.prompts, like)
        self.ask(Mirror(self.next_id, namespace, prompt.copy(), TENANT_OF[namespace]), then)

    @rule(like=PICK, eighths=EIGHTHS, pieces=PIECES, tail=PICK, retention=RETENTION)
    def serve_alike(
        self, like: int, eighths: int, pieces: list[int], tail: int, retention: int
    ) -> None:
        self.arrive_alike(like, eighths, pieces, tail, retention, "serve")

    @rule(like=PICK)
    def serve_again(self, like: int) -> None:
        self.arrive_again(like, "serve")

    def ask(self, mirror: Mirror, then: str) -> None:
        most = (self.world.usable + 2) * self.world.size
        del mirror.tokens[most:]
        self.next_id += 1
        self.prompts = [*self.prompts[-12:], (mirror.namespace, mirror.tokens.copy())]
        self.waiting.append(mirror)
        if then == "admit":
            self.world.admit(mirror)
        elif then == "expect":
            self.world.expect(mirror)
        elif then != "wait":
            self.start_now(mirror, is_computed=then != "start")
            if then == "serve" and mirror.sequence_id in self.world.live:
                self.world.release(mirror)
        if len(self.waiting) > 6:
            self.world.forget(self.waiting.pop(0))

    def start_now(self, mirror: Mirror, *, is_computed: bool) -> None:
        if self.world.start(mirror):
            self.waiting.remove(mirror)
            if is_computed:
                self.world.commit(mirror, len(mirror.tokens))

    @precondition(lambda self: self.waiting)
    @rule(number=PICK)
    def admit(self, number: int) -> None:
        self.world.admit(pick(self.waiting, number))

    @precondition(lambda self: self.waiting)
    @rule(number=PICK, is_computed=st.booleans())
    def start(self, number: int, is_computed: bool) -> None:
        self.start_now(pick(self.waiting, number), is_computed=is_computed)

    @precondition(lambda self: any(mirror.plan for mirror in self.waiting))
    @rule(number=PICK)
    def begin(self, number: int) -> None:
        mirror = pick([mirror for mirror in self.waiting if mirror.plan], number)
        if self.world.begin(mirror):
            self.waiting.remove(mirror)

    @precondition(is_live)
    @rule(number=PICK, eighths=EIGHTHS)
    def prefill(self, number: int, eighths: int) -> None:
        mirror = self.sequence(number)
        missing = len(mirror.tokens) - mirror.computed
        self.world.commit(mirror, mirror.computed + -(-missing * eighths // 8))

    @precondition(is_live)
    @rule(number=PICK, token=st.integers(0, 2), is_long=st.booleans())
    def decode(self, number: int, token: int, is_long: bool) -> None:
        """One token, or up to the next block and into it."""
        mirror = self.sequence(number)
        to_boundary = -len(mirror.tokens) % self.world.size
        for _ in range(1 + to_boundary if is_long else 1):
            if not self.world.append(mirror, token):
                return
        self.world.settle()

    @precondition(is_live)
    @rule(number=PICK)
    def fork(self, number: int) -> None:
        if self.world.fork(self.sequence(number), self.next_id):
            self.next_id += 1

    @precondition(is_live)
    @rule(number=PICK)
    def finish(self, number: int) -> None:
        mirror = self.sequence(number)
        self.world.release(mirror)
        self.ended = [*self.ended[-3:], mirror]

    @precondition(is_live)
    @rule(number=PICK, keep_blocks=st.sampled_from([0, 0, 1, 2, 9]))
    def preempt(self, number: int, keep_blocks: int) -> None:
        mirror = self.sequence(number)
        self.world.preempt(mirror, keep_blocks)
        self.waiting.append(mirror)

    @precondition(lambda self: self.waiting)
    @rule(number=PICK)
    def abort_what_waits(self, number: int) -> None:
        mirror = pick(self.waiting, number)
        self.waiting.remove(mirror)
        if self.has_host:
            self.world.offload.forget(mirror.sequence_id)
        self.world.forget(mirror)
        self.world.release(mirror)

    @precondition(lambda self: self.ended)
    @rule(number=PICK)
    def touch_what_ended(self, number: int) -> None:
        """A second abort, and calls that come too late."""
        mirror, manager = pick(self.ended, number), self.world.manager
        self.world.release(mirror)
        for call in (
            lambda: manager.append(mirror.sequence_id, 1),
            lambda: manager.commit(mirror.sequence_id, mirror.computed),
            lambda: manager.preempt(mirror.sequence_id),
            lambda: manager.fork(mirror.sequence_id, self.next_id),
        ):
            with pytest.raises(UnknownSequenceError):
                call()
        self.world.settle()

    @precondition(lambda self: self.world.live and self.world.steps % 4 == 0)
    @rule(number=PICK)
    def commit_too_much(self, number: int) -> None:
        mirror = self.sequence(number)
        for computed in (len(mirror.tokens) + 1, mirror.computed - 1):
            with pytest.raises(InvalidArgumentError):
                self.world.manager.commit(mirror.sequence_id, computed)
        self.world.settle()

    # --- holds ---

    @precondition(lambda self: self.waiting)
    @rule(number=PICK, is_over=st.sampled_from([False, False, True]))
    def expect(self, number: int, is_over: bool) -> None:
        mirror = pick(self.waiting, number)
        if is_over:
            self.world.unexpect(mirror)
        else:
            self.world.expect(mirror)

    @rule(like=PICK, seconds=SECONDS)
    def pin(self, like: int, seconds: int) -> None:
        pin_id = self.world.pin(*pick(self.prompts, like), seconds)
        if pin_id is not None:
            self.pins = [*self.pins[-5:], pin_id]

    @precondition(lambda self: self.pins)
    @rule(number=PICK)
    def unpin(self, number: int) -> None:
        self.world.unpin(pick(self.pins, number))

    @rule(like=PICK, seconds=SECONDS)
    def begin_load(self, like: int, seconds: int) -> None:
        namespace, tokens = pick(self.prompts, like)
        if namespace in self.world.tenant_of:
            lease = self.world.begin_load(namespace, tokens, seconds)
            if lease is not None:
                self.loads = [*self.loads[-5:], lease]

    @precondition(lambda self: self.loads)
    @rule(number=PICK, blocks=st.sampled_from([None, 0, 1, 2, 99, 99]))
    def end_load(self, number: int, blocks: int | None) -> None:
        """In time, after the deadline, or again; None: given up."""
        lease = pick(self.loads, number)
        hold = self.world.holds.get(("load", lease.lease_id))
        if blocks is None:
            self.world.end_lease("load", lease.lease_id)
        else:
            most = 0 if hold is None else len(hold.blocks) - hold.new_from
            self.world.finish_load(lease, min(blocks, most))

    @rule(like=PICK, seconds=SECONDS)
    def begin_store(self, like: int, seconds: int) -> None:
        lease = self.world.begin_store(*pick(self.prompts, like), seconds)
        if lease is not None:
            self.stores = [*self.stores[-5:], lease.lease_id]

    @precondition(lambda self: self.stores)
    @rule(number=PICK)
    def end_store(self, number: int) -> None:
        self.world.end_lease("store", pick(self.stores, number))

    # --- the host tier ---

    @precondition(lambda self: self.has_host and self.world.gone)
    @rule(number=PICK, polls=st.sampled_from([0, 1, 9]))
    def prefetch_what_went(self, number: int, polls: int) -> None:
        namespace, tokens = pick(self.world.gone, number)
        self.world.prefetch(namespace, [*tokens, 0])
        while polls and self.world.transfers:
            self.world.poll()
            polls -= 1

    @precondition(lambda self: self.has_host and any(mirror.resumed for mirror in self.waiting))
    @rule(number=PICK)
    def prefetch_what_was_preempted(self, number: int) -> None:
        mirror = pick([mirror for mirror in self.waiting if mirror.resumed], number)
        self.world.prefetch(mirror.namespace, mirror.tokens)

    @precondition(lambda self: self.has_host and self.world.transfers)
    @rule()
    def poll(self) -> None:
        self.world.poll()

    @precondition(lambda self: self.has_host and self.world.transfers)
    @rule(number=PICK)
    def cancel(self, number: int) -> None:
        self.world.cancel(pick(self.world.transfers, number))

    @precondition(lambda self: self.has_host and self.world.live)
    @rule(number=PICK)
    def swap(self, number: int) -> None:
        mirror = self.sequence(number)
        self.world.swap(mirror)
        self.waiting.append(mirror)

    # --- time ---

    @precondition(lambda self: self.world.holds or self.world.ttl_seconds[1])
    @rule(seconds=SECONDS, is_seen=st.booleans())
    def time_passes(self, seconds: int, is_seen: bool) -> None:
        """Unseen: nobody calls `expire`, and who is short of blocks finds what is over."""
        if is_seen:
            self.world.advance(seconds)
        else:
            self.world.advance_unseen(seconds)

    # --- the whole ---

    @precondition(lambda self: self.world.shares and self.world.steps % 4 == 0)
    @rule(
        tenant=st.sampled_from(["warm", "batch"]),
        floor_blocks=st.integers(0, 6),
        more_blocks=st.sampled_from([None, 1, 3]),
    )
    def change_share(self, tenant: str, floor_blocks: int, more_blocks: int | None) -> None:
        quota = None if more_blocks is None else floor_blocks + more_blocks
        self.world.set_share(tenant, TenantShare(floor_blocks, quota))

    @precondition(lambda self: self.world.steps >= self.resized_at + 15)
    @rule(usable=st.integers(1, 20))
    def resize(self, usable: int) -> None:
        self.world.resize(usable if self.world.size <= 32 else 1 + usable // 3)
        self.resized_at = self.world.steps

    @precondition(lambda self: self.world.steps >= self.flushed_at + 25)
    @rule(namespace=st.sampled_from([None, *sorted(TENANT_OF)]))
    def flush(self, namespace: bytes | None) -> None:
        self.world.flush(namespace)
        self.flushed_at = self.world.steps

    @precondition(lambda self: self.world.index.key_of)
    @rule(like=PICK)
    def look_up(self, like: int) -> None:
        namespace, tokens = pick(self.prompts, like)
        found = self.world.manager.lookup(namespace, np.array(tokens, np.int32))
        assert found == len(self.world.index.match(namespace, tokens)) * self.world.size
