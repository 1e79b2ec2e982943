"""The shares of tenants, told in percent, as blocks of a pool that may change its size."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvcache import CacheManager
from kvcache.tenants import TenantShare
from service.config.tenants import TenantPercent


def shares_in_blocks(
    percents: Mapping[str, TenantPercent], usable_blocks: int
) -> dict[str, TenantShare]:
    """Floors are rounded down, so that all fit together; quotas up, so that none is nothing."""
    return {
        tenant: TenantShare(
            floor_blocks=math.floor(usable_blocks * percent.floor / 100),
            quota_blocks=max(1, math.ceil(usable_blocks * percent.quota / 100)),
        )
        for tenant, percent in percents.items()
    }


class Tenancy:
    """Tenants with a share of their own, and what they have in use."""

    def __init__(self, manager: CacheManager, percents: Mapping[str, TenantPercent]) -> None:
        """The manager was made with `shares_in_blocks` of the same percents."""
        self._manager = manager
        self._percents = percents

    def fit(self, usable_blocks: int) -> None:
        """Measures the shares by another size of the pool: before it shrinks, after it grows."""
        for tenant, share in shares_in_blocks(self._percents, usable_blocks).items():
            self._manager.set_share(tenant, share)

    def is_at_quota(self, tenant: str) -> bool:
        """Whether it has as much in use as it may."""
        stats = self._manager.tenant_stats(tenant)
        return stats.quota_blocks is not None and stats.in_use >= stats.quota_blocks

    def helpful(self, tenants: set[str], needy: str, *, lacks_quota: bool) -> set[str]:
        """Those of `tenants` whose sequences can give blocks to one of the tenant `needy`.

        One that lacks quota gets blocks only from its own. Blocks of a tenant that has no more
        in use than it is guaranteed would stay reserved for that tenant.
        """
        if not self._percents:
            return tenants
        own = tenants & {needy}
        if lacks_quota:
            return own
        return own | {tenant for tenant in tenants if self._borrows(tenant)}

    def _borrows(self, tenant: str) -> bool:
        stats = self._manager.tenant_stats(tenant)
        return stats.in_use > stats.floor_blocks
