"""Reads the shares of tenants out of one setting, so that a flag and a variable can tell them."""

from __future__ import annotations

from dataclasses import dataclass

_FORM = "NAME=FLOOR-QUOTA in percent of the KV pool, as interactive=30-100"
_MAX_TENANTS = 31  # as many as the cores of the cache manager can tell apart


@dataclass(frozen=True, slots=True)
class TenantPercent:
    """What a tenant is guaranteed of the pool, and the most it may have in use."""

    floor: float
    quota: float


def parse_tenant_shares(text: str) -> dict[str, TenantPercent]:
    """The shares by name of the tenant, of "interactive=30-100, batch=0-50".

    Raises ValueError for an entry of another form, numbers out of order, a name that comes
    twice, and floors that are more than the whole together.
    """
    shares: dict[str, TenantPercent] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, share = _parse_entry(entry)
        if name in shares:
            raise ValueError(f"tenant_shares: {name} comes twice")
        shares[name] = share
    if len(shares) > _MAX_TENANTS:
        raise ValueError(
            f"tenant_shares: {len(shares)} tenants, at most {_MAX_TENANTS} can be told"
        )
    floors = sum(share.floor for share in shares.values())
    if floors > 100:
        raise ValueError(f"tenant_shares: the floors add up to {floors:g} %, more than 100 %")
    return shares


def _parse_entry(entry: str) -> tuple[str, TenantPercent]:
    name, _, numbers = entry.rpartition("=")
    floor_text, _, quota_text = numbers.partition("-")
    try:
        share = TenantPercent(float(floor_text), float(quota_text))
    except ValueError:
        raise ValueError(f"tenant_shares: {entry!r} must be {_FORM}") from None
    if not name:
        raise ValueError(f"tenant_shares: {entry!r} must be {_FORM}")
    if not 0 <= share.floor <= share.quota <= 100 or share.quota == 0:
        limit = "0 <= FLOOR <= QUOTA <= 100 and a QUOTA above 0"
        raise ValueError(f"tenant_shares: {entry!r} must have {limit}")
    return name.strip(), share
