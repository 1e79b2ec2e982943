"""A cache manager, the memory behind it, and a naive model that is compared after every step.

`World` knows who holds which block and counts everything anew each time. `settle` compares all
of it with the manager: gauges, tables, the index, what was evicted, and the content of every
computed slot; what nobody holds is overwritten with poison, so that a use after free is seen.
The operations are in `kv_operations` and `kv_holds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from kv_evictions import NO_SHARE, Cached, Look, judge
from kv_model import POISON, ContentMemory, Hold, IndexMirror, Key, next_digest

from kvcache import AdmissionRequest, CacheManager, EventLog, Fits, IndexReplica
from kvcache.core import CoreChoice
from kvcache.core.eviction import PolicyName
from kvcache.tenants import TenantShare


@dataclass(slots=True, eq=False)
class Mirror:
    """What the test knows of a sequence, live or not."""

    sequence_id: int
    namespace: bytes
    tokens: list[int]
    tenant: str = ""
    retention: int = 0
    use_cache: bool = True
    publish: bool = True
    headroom: int = 0
    resumed: bool = False
    computed: int = 0
    digests: list[int] = field(default_factory=list)  # once it is live
    plan: Fits | None = None

    def add(self, token: int) -> None:
        self.digests.append(next_digest(self.digests[-1], token))
        self.tokens.append(token)

    def request(self) -> AdmissionRequest:
        return AdmissionRequest(
            self.sequence_id,
            np.array(self.tokens, np.int32),
            self.namespace,
            use_cache=self.use_cache,
            publish=self.publish,
            headroom_blocks=self.headroom,
            resumed=self.resumed,
            tenant=self.tenant,
            retention=self.retention,
        )


@dataclass(slots=True)
class Recount:
    """The gauges, counted from the holders."""

    free: int = 0
    cached: int = 0
    expected: int = 0
    held: int = 0
    pinned: int = 0
    loading: int = 0
    storing: int = 0
    shared: int = 0
    reserved: int = 0
    live_sequences: int = 0
    slack_tokens: int = 0
    stranded_blocks: int = 0


GAUGES = [gauge.name for gauge in fields(Recount)]


class World:
    """One manager under test."""

    def __init__(
        self,
        usable_blocks: int,
        block_tokens: int,
        *,
        core: CoreChoice = "auto",
        policy: PolicyName = "reuse-aware",
        tenants: Mapping[str, TenantShare] | None = None,
        retention_ttl_seconds: tuple[float | None, ...] = (None,) * 8,
        partial_reuse_tokens: int | None = 1,
        audit_every: int = 1,
    ) -> None:
        self.audit_every = audit_every
        self.size = block_tokens
        self.usable = usable_blocks
        self.shares = dict(tenants or {})
        self.partial = partial_reuse_tokens
        self.now = 0.0
        self.memory = ContentMemory(usable_blocks + 1, block_tokens)
        self.index = IndexMirror(self.memory)
        self.log = EventLog()
        self.manager = CacheManager(
            usable_blocks + 1,
            block_tokens,
            policy=policy,
            core=core,
            memory=self.memory,
            tenants=dict(self.shares),
            retention_ttl_seconds=retention_ttl_seconds,
            partial_reuse_tokens=partial_reuse_tokens,
            events=self.log,
            clock=lambda: self.now,
        )
        self.manager.add_listener(self.index)
        self.replica = IndexReplica(self.manager.snapshot(), block_tokens)
        self.live: dict[int, Mirror] = {}
        self.tables: dict[int, list[int]] = {}
        self.holds: dict[tuple[str, int], Hold] = {}
        self.tenant_of: dict[bytes, str] = {}
        self.count = Recount(free=usable_blocks)
        self.look = Look(usable_blocks)
        self.ttl_seconds = retention_ttl_seconds
        self.levels: dict[int, int] = {}  # of retention, by block
        self.gone: list[Key] = []  # left the index of late
        self.let_go_at: dict[Key, float] = {}  # when a sequence held it last
        self.dropped_expectations = self.evicted_blocks = self.lapsed = 0
        self.forks = self.preemptions = self.steps = 0

    # --- questions to the model ----------------------------------------------

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def holders(self) -> dict[int, list[str]]:
        """Kinds of holders by block: sequence, pin, load, store, expect."""
        found: dict[int, list[str]] = {}
        for table in self.tables.values():
            for block in table:
                found.setdefault(block, []).append("sequence")
        for hold in self.holds.values():
            for block in hold.blocks:
                found.setdefault(block, []).append(hold.kind)
        return found

    def firmly_held(self) -> set[int]:
        """Blocks that nobody else may be given."""
        return {b for b, kinds in self.holders().items() if set(kinds) != {"expect"}}

    def recount(self, holders: dict[int, list[str]]) -> Recount:
        count = Recount()
        for block in range(1, self.usable + 1):
            state = self.state(block, holders.get(block, []))
            setattr(count, state, getattr(count, state) + 1)
            count.shared += len(holders.get(block, [])) >= 2
        used = [block for block in range(1, self.usable + 1) if self.is_used(block, holders)]
        count.stranded_blocks = max(used, default=0) - len(used)
        count.live_sequences = len(self.live)
        for sequence_id, mirror in self.live.items():
            blocks = len(self.tables[sequence_id])
            count.reserved += blocks - self.blocks_for(mirror.computed)
            count.slack_tokens += blocks * self.size - len(mirror.tokens)
        return count

    def is_used(self, block: int, holders: dict[int, list[str]]) -> bool:
        return block in holders or block in self.index.key_of

    def state(self, block: int, kinds: list[str]) -> str:
        is_indexed = block in self.index.key_of
        if "sequence" in kinds:
            return "held"
        if "load" in kinds and not is_indexed:
            return "loading"
        if "store" in kinds:
            return "storing"
        if "pin" in kinds or "load" in kinds:
            return "pinned"
        if "expect" in kinds:
            return "expected"
        return "cached" if is_indexed else "free"

    def look_at_cache(self, holders: dict[int, list[str]]) -> Look:
        """Who has how much, and what may be evicted."""
        owner: dict[int, str] = {}
        for sequence_id, mirror in self.live.items():
            owner |= dict.fromkeys(self.tables[sequence_id], mirror.tenant)
        for hold in self.holds.values():
            owner |= dict.fromkeys(hold.blocks, self.tenant_of.get(hold.namespace, ""))
        for block, (namespace, _) in self.index.key_of.items():
            owner[block] = self.tenant_of.get(namespace, "")
        look = Look(self.usable - len(owner))
        for block, tenant in owner.items():
            state = self.state(block, holders.get(block, []))
            key = self.index.key_of.get(block)
            (look.kept if state in ("cached", "expected") else look.in_use)[tenant] += 1
            if key is None:
                continue
            if state in ("held", "loading"):
                self.let_go_at[key] = self.now
            elif state in ("cached", "expected"):
                level = self.levels.get(block, 0)
                ttl = self.ttl_seconds[level]
                is_over = ttl is not None and self.let_go_at.get(key, self.now) + ttl <= self.now
                lowest = 0 if is_over else level
                look.cached[key] = Cached(tenant, lowest, level, state == "expected")
        return look

    def spare(self, tenant: str) -> int:
        """Blocks that are not in use and no other tenant's floor; may be negative."""
        owed = sum(
            max(0, share.floor_blocks - self.look.in_use[name])
            for name, share in self.shares.items()
            if name != tenant
        )
        return self.count.free + self.count.cached + self.count.expected - owed

    def quota_left(self, tenant: str) -> int:
        quota = self.shares.get(tenant, NO_SHARE).quota_blocks
        return self.usable if quota is None else quota - self.look.in_use[tenant]

    def available(self, tenant: str) -> int:
        return max(0, min(self.spare(tenant), self.quota_left(tenant)))

    def evictable(self, blocks: list[int]) -> int:
        """How many of these nobody holds firmly."""
        holders = self.holders()
        states = (self.state(block, holders.get(block, [])) for block in blocks)
        return sum(state in ("cached", "expected") for state in states)

    def limit_blocks(self, tenant: str) -> int:
        """The most blocks that the tenant can ever have."""
        quota = self.shares.get(tenant, NO_SHARE).quota_blocks
        owed = sum(s.floor_blocks for name, s in self.shares.items() if name != tenant)
        return min(self.usable - owed, self.usable if quota is None else quota)

    def hits(self, mirror: Mirror) -> list[int]:
        return self.index.match(mirror.namespace, mirror.tokens) if mirror.use_cache else []

    def short(self, mirror: Mirror) -> int:
        """Blocks that the sequence lacks; 0 or less: it can start."""
        hits = self.hits(mirror)
        taken = self.blocks_for(len(mirror.tokens)) - len(hits) + self.evictable(hits)
        reserve = mirror.headroom if self.live else 0
        beyond_quota = taken - self.quota_left(mirror.tenant)
        return max(taken + reserve - self.spare(mirror.tenant), beyond_quota)

    # --- comparison ----------------------------------------------------------

    def settle(
        self,
        *,
        new_blocks: int = 0,
        tenant: str = "",
        is_resize: bool = False,
        begun_id: int | None = None,
    ) -> None:
        """Compares model and manager after a step that needed so many blocks for the tenant.

        What was expected for the sequence that began is not any more, unless it made room itself.
        """
        removals = self.index.take_removals()
        for block, _ in removals:
            self.levels.pop(block, None)
        self.follow(self.index.take_moves())
        self.read_tables()
        for_whom = None if is_resize else tenant
        dropped = self.forget_what_was_dropped(new_blocks > 0 or is_resize, for_whom)
        self.holds.pop(("expect", begun_id), None)
        self.holds.pop(("kept", begun_id), None)
        stats = self.manager.stats()
        if stats.expired_pins + stats.expired_loads + stats.expired_stores > self.lapsed:
            dropped = self.end_what_is_due() > 0
        holders = self.holders()
        self.count = self.recount(holders)
        wanted = {name: getattr(self.count, name) for name in GAUGES}
        seen = {name: getattr(stats, name) for name in GAUGES}
        assert seen == wanted, f"the manager counts {seen}, the model {wanted}"
        self.evicted_blocks += len(removals)
        self.gone = [*self.gone, *(key for _, key in removals)][-8:]
        assert (stats.total, stats.evicted_blocks) == (self.usable, self.evicted_blocks)
        assert stats.expired_pins + stats.expired_loads + stats.expired_stores == self.lapsed
        assert (stats.forks, stats.preemptions) == (self.forks, self.preemptions)
        self.check_content()
        self.note_levels(holders)
        before, self.look = self.look, self.look_at_cache(holders)
        if not is_resize:
            judge(
                before,
                self.look,
                [key for _, key in removals],
                new_blocks=new_blocks,
                tenant=tenant,
                shares=self.shares,
                holds_dropped=dropped,
            )
        self.check_shares()
        self.manager.check()
        self.steps += 1
        if self.steps % self.audit_every == 0:
            self.manager.audit()
            self.check_replica()
            self.check_costs(holders)
        free = [b for b in range(1, self.usable + 1) if not self.is_used(b, holders)]
        self.memory.slots[free] = POISON

    def forget_what_was_dropped(self, may_drop: bool, tenant: str | None) -> bool:
        """Expectations and kept prefixes may go when blocks are short, the newest first."""
        count = self.manager.stats().dropped_expectations - self.dropped_expectations
        if not count:
            return False
        assert may_drop, "dropped although nobody needed blocks"
        self.dropped_expectations += count
        order = [
            name
            for is_own in (True, False)
            for kind in ("expect", "kept")
            for name, hold in reversed(self.holds.items())
            if name[0] == kind and self.may_drop(hold, tenant) is is_own
        ]
        for name in order[:count]:
            del self.holds[name]
        return True

    def may_drop(self, hold: Hold, tenant: str | None) -> bool | None:
        """True: its own (no tenant: anybody's); False: of one above its floor; None: it may not."""
        owner = self.tenant_of.get(hold.namespace, "")
        if tenant in (None, owner):
            return True
        has_more = self.look.total(owner) > self.shares.get(owner, NO_SHARE).floor_blocks
        return False if has_more else None

    def begin_anew(self, blocks: list[int]) -> None:
        """Blocks were allocated: whatever level they had is over."""
        for block in blocks:
            self.levels.pop(block, None)

    def note_levels(self, holders: dict[int, list[str]]) -> None:
        """A block has the highest level of the sequences that held it since it was allocated."""
        for block in range(1, self.usable + 1):
            if not self.is_used(block, holders):
                self.levels.pop(block, None)
        for sequence_id, mirror in self.live.items():
            for block in self.tables[sequence_id]:
                self.levels[block] = max(self.levels.get(block, 0), mirror.retention)

    def check_shares(self) -> None:
        for name in self.shares:
            figures = self.manager.tenant_stats(name)
            assert figures.in_use == self.look.in_use[name]
            assert figures.cached == self.look.kept[name]

    def check_replica(self) -> None:
        """Whoever follows the events knows the index, block for block."""
        for event in self.log.since(self.replica.number):
            self.replica.apply(event)
        known = {block: entry.token_ids for block, entry in self.replica.blocks.items()}
        assert known == {block: key[1][-self.size :] for block, key in self.index.key_of.items()}

    def check_costs(self, holders: dict[int, list[str]]) -> None:
        """What preempting a sequence would free."""
        for sequence_id, table in self.tables.items():
            own = sum(len(holders[block]) == 1 for block in table)
            assert self.manager.exclusive_blocks(sequence_id) == own

    def lapse(self) -> int:
        """Whatever was held until now is not held any more; answers how much that was."""
        ended = self.end_what_is_due()
        if ended:
            holders = self.holders()
            self.count, self.look = self.recount(holders), self.look_at_cache(holders)
        return ended

    def end_what_is_due(self) -> int:
        due = [name for name, hold in self.holds.items() if hold.expires_at <= self.now]
        for name in due:
            del self.holds[name]
        self.lapsed += len(due)
        return len(due)

    def follow(self, moves: list[tuple[int, int]]) -> None:
        """Blocks have new ids."""
        for hold in self.holds.values():
            hold.follow(moves)
        for source, destination in moves:
            if source in self.levels:
                self.levels[destination] = self.levels.pop(source)

    def read_tables(self) -> None:
        for sequence_id, mirror in self.live.items():
            table = self.manager.block_table(sequence_id).tolist()
            self.tables[sequence_id] = table
            assert len(set(table)) == len(table), "a block twice in one table"
            assert 0 not in table, "the null block is nobody's"
            assert len(table) == self.blocks_for(len(mirror.tokens))
            assert self.manager.num_tokens(sequence_id) == len(mirror.tokens)
            assert self.manager.computed_tokens(sequence_id) == mirror.computed

    def check_content(self) -> None:
        """Every computed slot of every live sequence has the K and V of its own token."""
        for sequence_id, mirror in self.live.items():
            found = self.memory.slots[self.tables[sequence_id]].reshape(-1)[: mirror.computed]
            wanted = np.array(mirror.digests[: mirror.computed], np.uint64)
            assert (found == wanted).all(), f"sequence {sequence_id} would read foreign K and V"
        self.index.check_content()
