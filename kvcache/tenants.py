"""Tenants: who is guaranteed how many blocks, and who may use how many at most."""

from __future__ import annotations

from dataclasses import dataclass

from kvcache.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant's part of the pool. Between floor and quota it borrows what others leave."""

    floor_blocks: int = 0  # guaranteed: others neither take nor evict below it
    quota_blocks: int | None = None  # most blocks in use at a time; None: what is there

    def __post_init__(self) -> None:
        if self.floor_blocks < 0:
            raise InvalidArgumentError("floor_blocks", self.floor_blocks, "at least 0")
        if self.quota_blocks is not None and self.quota_blocks < max(1, self.floor_blocks):
            limit = f"at least 1 and at least floor_blocks ({self.floor_blocks})"
            raise InvalidArgumentError("quota_blocks", self.quota_blocks, limit)
