"""Whether what was evicted had to be, and was the right thing to evict.

Judged from two looks at the cache, before and after one operation, without knowing how a victim
is found: that no block goes without need, that floors and quotas hold, that a lower level of
retention goes before a higher one, and that what a waiting request expects goes last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kv_model import Key

from kvcache.tenants import TenantShare

NO_SHARE = TenantShare()


@dataclass(frozen=True, slots=True)
class Cached:
    """An indexed block that no sequence, pin or transfer holds."""

    tenant: str
    lowest_level: int  # 0 when its time to live may be over
    highest_level: int
    is_expected: bool


@dataclass(slots=True)
class Look:
    """The cache at one moment."""

    free: int
    in_use: Counter[str] = field(default_factory=Counter)  # blocks by tenant
    kept: Counter[str] = field(default_factory=Counter)  # cached and expected blocks by tenant
    cached: dict[Key, Cached] = field(default_factory=dict)

    def total(self, tenant: str) -> int:
        return self.in_use[tenant] + self.kept[tenant]


def judge(
    before: Look,
    after: Look,
    evicted: Sequence[Key],
    *,
    new_blocks: int,
    tenant: str,
    shares: Mapping[str, TenantShare],
    holds_dropped: bool,
) -> None:
    """Asserts that `evicted`, in this order, made room for `new_blocks` of `tenant` rightly."""
    quota = shares.get(tenant, NO_SHARE).quota_blocks
    excess = 0
    if quota is not None and new_blocks:
        excess = max(0, before.total(tenant) + new_blocks - quota)
    needed = max(excess, new_blocks - before.free, 0)
    assert len(evicted) <= needed, "evicted without need"
    if not holds_dropped:
        assert len(evicted) == needed, f"{needed} blocks were to be evicted for {tenant!r}"
        assert not any(before.cached[key].is_expected for key in evicted), "expected, but evicted"
    for number, key in enumerate(evicted):
        victim = before.cached.get(key)
        if victim is None:
            assert holds_dropped, "a held block was evicted"
            continue
        if number < excess:
            assert victim.tenant == tenant, "beyond its quota a tenant evicts its own blocks"
        elif victim.tenant != tenant:
            floor = shares.get(victim.tenant, NO_SHARE).floor_blocks
            assert after.total(victim.tenant) >= floor, "below another tenant's floor"
        for other_key, other in after.cached.items():
            if other_key not in before.cached or before.cached[other_key].is_expected:
                continue  # a sequence that begins lets go of what it expected after its victims
            if other.is_expected:
                continue
            may_go = other.tenant == tenant
            if number >= excess and not may_go:
                floor = shares.get(other.tenant, NO_SHARE).floor_blocks
                may_go = after.total(other.tenant) > floor
            assert not may_go or victim.lowest_level <= other.highest_level, (
                f"{victim} went before {other}"
            )
    for name, share in shares.items():
        if share.quota_blocks is not None and name == tenant and new_blocks:
            assert after.total(name) <= share.quota_blocks, "more than its quota"
