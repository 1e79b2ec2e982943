"""Where blocks go that the device has no room for: host memory, disk, a remote store.

A block is addressed by what it contains: its key is a digest of the fingerprint of the model,
the namespace, and all tokens up to and including its own. So a tier needs no notice of what
the device does, two replicas agree without talking, and what a restarted process finds on its
disk is as good as on the day it was written.

`Offload` joins the tiers to a `CacheManager`; `Tier` is what a store has to implement.
"""

from kvcache.tiers.keys import BlockKey, Fingerprint, chain_keys
from kvcache.tiers.tier import Tier, TierError, TierStats

__all__ = [
    "BlockKey",
    "Fingerprint",
    "Tier",
    "TierError",
    "TierStats",
    "chain_keys",
]
