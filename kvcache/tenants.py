"""Tenants: who is guaranteed how many blocks, and who may use how many at most.

Below its floor nobody takes blocks from a tenant, or evicts them; between floor and quota it
borrows what others leave. Tenants without a share of their own live together in group 0 of the
core, without floor or quota.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

from kvcache.core import GROUPS, CacheCore
from kvcache.errors import InvalidArgumentError

MAX_TENANTS = GROUPS - 1  # with a share of their own
EVERYBODY_ELSE = 0  # the group of the others


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant's part of the pool."""

    floor_blocks: int = 0  # guaranteed
    quota_blocks: int | None = None  # most at a time, in use or cached; None: what is there

    def __post_init__(self) -> None:
        if index(self.floor_blocks) < 0:
            raise InvalidArgumentError("floor_blocks", self.floor_blocks, "at least 0")
        if self.quota_blocks is not None and index(self.quota_blocks) < max(1, self.floor_blocks):
            limit = f"at least 1 and at least floor_blocks ({self.floor_blocks})"
            raise InvalidArgumentError("quota_blocks", self.quota_blocks, limit)


NO_SHARE = TenantShare()


class Tenants:
    """The shares in force, by group of the core."""

    def __init__(self, shares: Mapping[str, TenantShare], usable_blocks: int) -> None:
        if len(shares) > MAX_TENANTS:
            raise InvalidArgumentError("tenants", len(shares), f"at most {MAX_TENANTS}")
        self._groups = {tenant: number for number, tenant in enumerate(shares, 1)}
        self.shares = [NO_SHARE, *shares.values()]
        self.are_many = bool(shares)  # else everybody is in one group without limits
        self.floor_blocks = sum(share.floor_blocks for share in self.shares)
        _require_floors(self.floor_blocks, usable_blocks)

    def group_of(self, tenant: str) -> int:
        """The group of the core that a tenant's blocks are charged to."""
        return self._groups.get(tenant, EVERYBODY_ELSE)

    def limit_blocks(self, group: int, usable_blocks: int) -> int:
        """The most blocks that a group can ever have in use."""
        share = self.shares[group]
        limit = usable_blocks - (self.floor_blocks - share.floor_blocks)
        return limit if share.quota_blocks is None else min(limit, share.quota_blocks)

    def install(self, core: CacheCore) -> None:
        """Tells a new core."""
        for group in self._groups.values():
            self._tell(core, group)

    def change(self, core: CacheCore, tenant: str, share: TenantShare, usable_blocks: int) -> None:
        """Gives a tenant that has a share another one."""
        group = self.group_of(tenant)
        if group == EVERYBODY_ELSE:
            limit = "a tenant that the manager was made with"
            raise InvalidArgumentError("tenant", tenant, limit)
        floor_blocks = self.floor_blocks - self.shares[group].floor_blocks + share.floor_blocks
        _require_floors(floor_blocks, usable_blocks)
        self.floor_blocks, self.shares[group] = floor_blocks, share
        self._tell(core, group)

    def require_fit(self, usable_blocks: int) -> None:
        """Raises InvalidArgumentError where a pool would be smaller than the floors together."""
        if self.floor_blocks > usable_blocks:
            limit = f"at least {self.floor_blocks + 1} (the floors of the tenants, the null block)"
            raise InvalidArgumentError("num_blocks", usable_blocks + 1, limit)

    def _tell(self, core: CacheCore, group: int) -> None:
        share = self.shares[group]
        quota = -1 if share.quota_blocks is None else share.quota_blocks
        core.set_group(group, share.floor_blocks, quota)


def _require_floors(floor_blocks: int, usable_blocks: int) -> None:
    if floor_blocks > usable_blocks:
        limit = f"at most {usable_blocks} for all tenants together, the blocks of the pool"
        raise InvalidArgumentError("floor_blocks", floor_blocks, limit)
