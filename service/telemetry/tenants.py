"""Which tenants have series of their own."""

from __future__ import annotations

from collections.abc import Iterable

from service.telemetry.catalog.tenants import NO_TENANT, OTHER_TENANTS


class TenantNames:
    """Gives the first tenants their name and all that come later one for them together.

    Who reaches the port may name any tenant: without a bound, every name would be a series that
    stays in the memory of this server and of whoever scrapes it.
    """

    def __init__(self, limit: int, known: Iterable[str]) -> None:
        """`limit` counts `known`, which have their name from the start, and those without one."""
        self._limit = limit
        self._names: dict[str, str] = {}
        for tenant in ("", *known):
            self.of(tenant)

    def of(self, tenant: str) -> str:
        """The label value of a tenant, the same each time."""
        name = self._names.get(tenant)
        if name is not None:
            return name
        if len(self._names) >= self._limit:
            return OTHER_TENANTS
        return self._names.setdefault(tenant, tenant or NO_TENANT)

    def all(self) -> list[str]:
        """All label values there are so far, the oldest first."""
        return list(dict.fromkeys((*self._names.values(), OTHER_TENANTS)))
