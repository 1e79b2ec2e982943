"""Who takes device memory."""

from __future__ import annotations

import enum


class Owner(enum.Enum):
    """What bytes of device memory are for."""

    WEIGHTS = "weights"
    KV_POOL = "kv_pool"
    ACTIVATIONS = "activations"  # what a step takes, and the allocator keeps for the next one
    GRAPHS = "graphs"
    CONTEXT = "context"  # of the runtime itself
    OTHERS = "others"  # other processes, and what nobody claims


# What the allocator of the model's framework gives out; the KV pool lies beside it.
OF_ALLOCATOR = frozenset({Owner.WEIGHTS, Owner.ACTIVATIONS, Owner.GRAPHS})
