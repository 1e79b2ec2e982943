"""Makes the cache manager and the tiers below it, as the settings say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kvcache import CacheManager
from kvcache.admission import RETENTION_LEVELS
from kvcache.host_memory import available_memory_bytes
from kvcache.memory import BlockMemory
from kvcache.tiers import Fingerprint, Tier, TierError
from kvcache.tiers.disk import DiskTier
from kvcache.tiers.host import HostTier
from kvcache.tiers.loads import LoadLimits
from kvcache.tiers.offload import Offload
from kvcache.tiers.remote_redis import RedisTier
from kvcache.tiers.sizing import affordable_bytes
from service.config import EngineSettings
from service.config.about import MIB
from service.config.tenants import parse_tenant_shares
from service.engine.errors import StartError
from service.engine.tenancy import shares_in_blocks

_SPARE_BYTES = 512 * MIB  # of the host's memory, for what the process needs beside the pool
# What to look at when a tier cannot be opened.
_SETTING_OF_TIER = {
    HostTier.name: "host_cache_bytes",
    DiskTier.name: "disk_cache_folder",
    RedisTier.name: "remote_cache_url",
}
_REMOTE_SECONDS = 7 * 86_400  # how long a remote store keeps a block that nobody asks for

_Opened = TypeVar("_Opened")
_log = logging.getLogger(__name__)


def make_manager(
    settings: EngineSettings,
    num_blocks: int,
    memory: BlockMemory,
    clock: Callable[[], float] = time.monotonic,
) -> CacheManager:
    """A manager of `num_blocks`, the null block included.

    Raises NativeCoreMissingError when the settings demand a core that is not there.
    """
    percents = parse_tenant_shares(settings.tenant_shares or "")
    ttl_seconds = [0.0] + [settings.priority_cache_seconds] * (RETENTION_LEVELS - 1)
    return CacheManager(
        num_blocks,
        settings.block_tokens,
        core=settings.kv_core,
        memory=memory,
        tenants=shares_in_blocks(percents, num_blocks - 1),
        retention_ttl_seconds=ttl_seconds,
        clock=clock,
    )


def make_offload(
    settings: EngineSettings,
    manager: CacheManager,
    memory: BlockMemory,
    fingerprint: Fingerprint,
    clock: Callable[[], float] = time.monotonic,
    *,
    wrap: Callable[[Tier], Tier] = lambda tier: tier,
    is_replacement: bool = False,
) -> Offload | None:
    """The tiers, or None where they are off or the host has no memory for one block.

    Disk and remote store are used through what `wrap` makes of them. A tier that cannot be opened
    is left out by the replacement of an engine that had it: streams wait, and need no tier.

    Raises StartError when a first engine cannot open a tier, and for a host tier of less than a
    block.
    """
    block_bytes = fingerprint.layout.block_bytes
    wanted_bytes = settings.host_cache_bytes
    if wanted_bytes == 0:
        return None
    if wanted_bytes < block_bytes:
        raise StartError(
            f"host_cache_bytes = {wanted_bytes}: a block of this model takes {block_bytes} bytes"
        )
    # The pool takes its pages when they are first written: they are still among the free ones.
    pool_bytes = (manager.usable_blocks + 1) * block_bytes
    host_bytes = affordable_bytes(wanted_bytes, _SPARE_BYTES + pool_bytes, available_memory_bytes())
    if host_bytes < block_bytes:
        return None
    host = _open(lambda: HostTier(block_bytes, host_bytes), is_replacement)
    if host is None:
        return None
    return Offload(
        manager,
        memory,
        fingerprint.digest,
        host,
        disk=_wrapped(_open(lambda: _disk(settings, fingerprint), is_replacement), wrap),
        remote=_wrapped(_open(lambda: _remote(settings, fingerprint), is_replacement), wrap),
        limits=LoadLimits(lease_seconds=settings.tier_timeout_seconds),
        clock=clock,
    )


def _open(make: Callable[[], _Opened | None], is_replacement: bool) -> _Opened | None:
    try:
        return make()
    except TierError as error:
        told = f"{_SETTING_OF_TIER[error.tier]}: {error}"
        if not is_replacement:
            raise StartError(told) from error
        _log.warning("cache tier left out: %s", told)
        return None


def _wrapped(tier: Tier | None, wrap: Callable[[Tier], Tier]) -> Tier | None:
    return None if tier is None else wrap(tier)


def _disk(settings: EngineSettings, fingerprint: Fingerprint) -> Tier | None:
    if settings.disk_cache_folder is None:
        return None
    folder = Path(settings.disk_cache_folder).expanduser()
    return DiskTier(folder, fingerprint.digest, settings.disk_cache_bytes)


def _remote(settings: EngineSettings, fingerprint: Fingerprint) -> Tier | None:
    if settings.remote_cache_url is None:
        return None
    return RedisTier(
        settings.remote_cache_url,
        fingerprint.digest,
        ttl_seconds=_REMOTE_SECONDS,
        timeout_seconds=settings.tier_timeout_seconds,
    )
