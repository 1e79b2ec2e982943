"""What the manager counts for each tenant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvcache.admission import Fits
from kvcache.core import CacheCore
from kvcache.stats import TenantStats
from kvcache.tenants import Tenants


class TenantLedger:
    """Per group of the core: what its requests looked up and found, and what others took."""

    def __init__(self, core: CacheCore, tenants: Tenants) -> None:
        self._core = core
        self._tenants = tenants
        groups = len(tenants.shares)
        self._groups = range(groups)
        self._lookup_tokens = [0] * groups
        self._hit_tokens = [0] * groups
        self._evicted_for_others = [0] * groups

    def looked_up(self, fits: Fits) -> None:
        """A sequence is about to start."""
        request, group = fits.plan.request, fits.plan.group
        if request.use_cache and not request.resumed:
            self._lookup_tokens[group] += request.token_ids.size
            self._hit_tokens[group] += fits.cached_tokens

    @contextmanager
    def evictions_for(self, group: int) -> Iterator[None]:
        """Counts what other groups lose meanwhile."""
        before = self._charged_blocks()
        yield
        for other, (had, has) in enumerate(zip(before, self._charged_blocks(), strict=True)):
            if other != group:
                self._evicted_for_others[other] += max(0, had - has)

    def stats(self, tenant: str) -> TenantStats:
        """Figures of one tenant."""
        group = self._tenants.group_of(tenant)
        in_use, cached = self._core.group_counts(group)
        share = self._tenants.shares[group]
        return TenantStats(
            in_use=in_use,
            cached=cached,
            floor_blocks=share.floor_blocks,
            quota_blocks=share.quota_blocks,
            lookup_tokens=self._lookup_tokens[group],
            hit_tokens=self._hit_tokens[group],
            evicted_for_others=self._evicted_for_others[group],
        )

    def _charged_blocks(self) -> list[int]:
        return [sum(self._core.group_counts(group)) for group in self._groups]
