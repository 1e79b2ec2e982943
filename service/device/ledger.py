"""Claims on device memory. Pure: who has how much, and what a caching allocator keeps."""

from __future__ import annotations

from service.device.owner import OF_ALLOCATOR, Owner


class Ledger:
    """Bytes by owner, and the cache that activations leave behind.

    Activations come and go with every step. What they give back stays with the allocator, as
    it does with the caching allocator of torch on a GPU, and serves the next step.
    """

    def __init__(self) -> None:
        self._taken = dict.fromkeys(Owner, 0)
        self.cached_bytes = 0

    @property
    def used_bytes(self) -> int:
        """All claims and the cache."""
        return sum(self._taken.values()) + self.cached_bytes

    @property
    def allocated_bytes(self) -> int:
        """Claims on what the allocator gives out, the cache not included."""
        return sum(self._taken[owner] for owner in OF_ALLOCATOR)

    def _missing_bytes(self, owner: Owner, size_bytes: int) -> int:
        """What a claim would take beyond the cache, which serves activations alone."""
        if size_bytes < 0:
            raise ValueError(f"size_bytes is {size_bytes}, but must be at least 0")
        cached = self.cached_bytes if owner is Owner.ACTIVATIONS else 0
        return max(0, size_bytes - cached)

    def take(self, owner: Owner, size_bytes: int) -> None:
        """Books a claim; whether there is memory for it was asked before."""
        from_cache = size_bytes - self._missing_bytes(owner, size_bytes)
        self._taken[owner] += size_bytes
        self.cached_bytes -= from_cache

    def give_back(self, owner: Owner, size_bytes: int) -> None:
        """Books the end of a claim, or raises ValueError for more than the owner has."""
        if not 0 <= size_bytes <= self._taken[owner]:
            raise ValueError(
                f"{size_bytes} bytes of {owner.value} are given back, "
                f"{self._taken[owner]} were taken"
            )
        self._taken[owner] -= size_bytes
        if owner is Owner.ACTIVATIONS:
            self.cached_bytes += size_bytes

    def drop_cache(self) -> int:
        """Empties the cache; answers what was in it."""
        dropped, self.cached_bytes = self.cached_bytes, 0
        return dropped

    def by_owner(self, used_bytes: int) -> dict[Owner, int]:
        """All owners, so that they sum to `used_bytes`: what nobody claims is of OTHERS."""
        shares = dict(self._taken)
        shares[Owner.ACTIVATIONS] += self.cached_bytes
        shares[Owner.OTHERS] += used_bytes - sum(shares.values())
        return shares
