"""Who can have how many blocks now, and what is let go so that they can be had.

Blocks for new tokens come from these, in order: free ones; cached ones, as the policy of
eviction has it; what pins and leases still hold after their deadline; and what is expected. The
last are counted as available all the time: no sequence waits for blocks that nobody has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kvcache.admission import Available
from kvcache.core import CacheCore, CoreCounts
from kvcache.errors import InvalidArgumentError, OutOfBlocksError, PoolInUseError
from kvcache.expectations import Expectations
from kvcache.tenant_ledger import TenantLedger
from kvcache.tenants import Tenants

_Answer = TypeVar("_Answer")


class Room:
    """The pool under the shares of the tenants."""

    def __init__(
        self,
        core: CacheCore,
        usable_blocks: int,
        tenants: Tenants,
        expectations: Expectations,
        ledger: TenantLedger,
    ) -> None:
        self.usable_blocks = usable_blocks  # all but the null block
        self._core = core
        self.tenants = tenants
        self._expectations = expectations
        self._ledger = ledger

    def available(self, group: int) -> Available:
        """What a group can have now, O(tenants)."""
        if not self.tenants.are_many:
            blocks = self._core.available_blocks(group)
            return Available(blocks, blocks, blocks)
        counts, shares = CoreCounts(*self._core.counts()), self.tenants.shares
        pool = counts.free + counts.cached + counts.expected
        owed = sum(
            max(0, share.floor_blocks - self._core.group_counts(other)[0])
            for other, share in enumerate(shares)
            if share.floor_blocks and other != group
        )
        quota = shares[group].quota_blocks
        left = pool if quota is None else quota - self._core.group_counts(group)[0]
        return Available(pool, pool - owed, left)

    def limit_blocks(self, group: int) -> int:
        """The most blocks that a group can ever have in use."""
        return self.tenants.limit_blocks(group, self.usable_blocks)

    def group_of(self, tenant: str, namespace: bytes) -> int:
        """The group that a tenant's blocks are charged to.

        Raises InvalidArgumentError when another one has blocks in the namespace.
        """
        group = self.tenants.group_of(tenant)
        if self.tenants.are_many and self._core.namespace_group(namespace) not in (-1, group):
            raise InvalidArgumentError("tenant", tenant, "the one whose namespace it is")
        return group

    def make(self, group: int, attempt: Callable[[], _Answer]) -> _Answer:
        """Attempts something that takes blocks, letting go of what is expected as needed.

        A tenant's need is at the cost of its own expectations first, then of those whose owners
        have more than their floor. Raises OutOfBlocksError when nothing helps, and nothing was
        let go for that.
        """
        with self._ledger.evictions_for(group):
            while True:
                try:
                    return attempt()
                except OutOfBlocksError as error:
                    is_hopeless = error.wanted_blocks > self._core.available_blocks(group)
                    if is_hopeless or not self.drop_expectation(group):
                        raise

    def make_fit(self, usable_blocks: int) -> None:
        """Lets go of what is expected until the rest fits into a pool of so many blocks.

        Raises PoolInUseError, and nothing was let go, when what is in use does not.
        """
        counts = CoreCounts(*self._core.counts())
        in_use = self.usable_blocks - counts.free - counts.cached - counts.expected
        if in_use > usable_blocks:
            raise PoolInUseError(usable_blocks, in_use)
        while in_use + CoreCounts(*self._core.counts()).expected > usable_blocks:
            self._expectations.drop_one()

    def drop_expectation(self, group: int) -> bool:
        """Lets go of one expectation on behalf of a group; False if there is none."""
        drop_one = self._expectations.drop_one
        return drop_one(lambda other: other == group) or drop_one(self._has_borrowed)

    def _has_borrowed(self, group: int) -> bool:
        charged_blocks = sum(self._core.group_counts(group))
        return charged_blocks > self.tenants.shares[group].floor_blocks
