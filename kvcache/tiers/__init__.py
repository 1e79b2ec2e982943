"""Where blocks go that the device has no room for: host memory, disk, a remote store.

A block is addressed by what it contains: its key is a digest of the fingerprint of the model,
the namespace, and all tokens up to and including its own. So a tier needs no notice of what
the device does, two replicas agree without talking, and what a restarted process finds on its
disk is as good as on the day it was written.

`Offload` joins a `HostTier`, and optionally a `DiskTier` and a remote store such as
`RedisTier`, to a `CacheManager`. `Tier` is what another store has to implement.
"""

from kvcache.tiers.disk import DiskTier
from kvcache.tiers.host import HostTier
from kvcache.tiers.keys import BlockKey, Fingerprint, chain_keys
from kvcache.tiers.loads import LoadLimits
from kvcache.tiers.offload import Offload, OffloadRates, OffloadStats
from kvcache.tiers.remote_redis import RedisTier
from kvcache.tiers.sizing import affordable_bytes
from kvcache.tiers.tier import Tier, TierError, TierStats
from kvcache.tiers.transfer import Transfer, TransferState

__all__ = [
    "BlockKey",
    "DiskTier",
    "Fingerprint",
    "HostTier",
    "LoadLimits",
    "Offload",
    "OffloadRates",
    "OffloadStats",
    "RedisTier",
    "Tier",
    "TierError",
    "TierStats",
    "Transfer",
    "TransferState",
    "affordable_bytes",
    "chain_keys",
]
