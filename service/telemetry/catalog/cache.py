"""The KV cache: blocks of the pool, prefixes, preemptions, and the tiers below."""

from __future__ import annotations

from service.telemetry.catalog.metric import Kind, Label, Metric

TIER = Label("tier", ("host", "disk"))

BLOCKS = Metric(
    name="plimsoll_kv_blocks",
    kind=Kind.GAUGE,
    unit="blocks",
    help="Blocks of the KV pool: free; cached, to be evicted if need be; active, with tokens of "
    "live sequences; reserved for their next tokens; kept by pins and transfers. All states add "
    "up to the capacity.",
    labels=(Label("state", ("free", "cached", "active", "reserved", "kept")),),
)
CAPACITY = Metric(
    name="plimsoll_kv_capacity_blocks",
    kind=Kind.GAUGE,
    unit="blocks",
    help="Blocks that the KV pool has now.",
)
REACH = Metric(
    name="plimsoll_kv_reach_blocks",
    kind=Kind.GAUGE,
    unit="blocks",
    help="Blocks that the KV pool can grow to in this engine, whatever is ordered.",
)
GOAL = Metric(
    name="plimsoll_kv_goal_blocks",
    kind=Kind.GAUGE,
    unit="blocks",
    help="Blocks that the governor aims at for the KV pool.",
)
CEILING = Metric(
    name="plimsoll_kv_ceiling_blocks",
    kind=Kind.GAUGE,
    unit="blocks",
    help="Blocks that the KV pool has by order: the governor may give it fewer, never more.",
)
SHARED = Metric(
    name="plimsoll_kv_shared_blocks",
    kind=Kind.GAUGE,
    unit="blocks",
    help="Blocks with two or more holders.",
)
BLOCK_SIZE = Metric(
    name="plimsoll_kv_block_size_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory of one block.",
)
EVICTED = Metric(
    name="plimsoll_kv_evicted_blocks_total",
    kind=Kind.COUNTER,
    unit="blocks",
    help="Cached blocks that were given to somebody else.",
)
LOOKUP_TOKENS = Metric(
    name="plimsoll_prefix_lookup_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help="Tokens that the prefix cache was asked for.",
)
HIT_TOKENS = Metric(
    name="plimsoll_prefix_hit_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help="Of the tokens that the prefix cache was asked for, those it had.",
)
MISSES = Metric(
    name="plimsoll_prefix_misses_total",
    kind=Kind.COUNTER,
    help="Lookups that found less than all: too_short, not one whole block; diverged, nothing "
    "cached goes on like this; evicted, not long ago; namespace, only another one has it; "
    "disabled, by the request.",
    labels=(Label("reason", ("too_short", "diverged", "evicted", "namespace", "disabled")),),
)
REGRETTED_TOKENS = Metric(
    name="plimsoll_prefix_regretted_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help="Tokens that were evicted and asked for again not long after.",
)
PREEMPTIONS = Metric(
    name="plimsoll_preemptions_total",
    kind=Kind.COUNTER,
    help="Sequences that lost blocks. By mode: trim, their last ones; swap, all, copied to the "
    "host; recompute, all that they alone held. By reason: kv_full, a running one needed a block; "
    "priority, a waiting one of higher priority took its place; pool_shrunk, the pool became "
    "smaller; oom, a step found no device memory.",
    labels=(
        Label("mode", ("trim", "swap", "recompute")),
        Label("reason", ("kv_full", "priority", "pool_shrunk", "oom")),
    ),
)
SLACK_TOKENS = Metric(
    name="plimsoll_kv_slack_tokens",
    kind=Kind.GAUGE,
    unit="tokens",
    help="Slots of held blocks that no token has taken yet: what paging wastes.",
)
BLOCK_TOKENS = Metric(
    name="plimsoll_kv_block_tokens",
    kind=Kind.GAUGE,
    unit="tokens",
    help="Slots of one block.",
)
FREE_LOW = Metric(
    name="plimsoll_kv_free_low_blocks",
    kind=Kind.GAUGE,
    unit="blocks",
    help="Blocks that were free or cached, the least of the last minute.",
)
SWAP = Metric(
    name="plimsoll_swap_bytes_total",
    kind=Kind.COUNTER,
    unit="bytes",
    help="K and V of preempted sequences that the host keeps for their return: out, put there; "
    "in, brought back into the pool for such a sequence, from whichever tier.",
    labels=(Label("direction", ("out", "in")),),
)
TIER_USED = Metric(
    name="plimsoll_tier_used_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory or disk that blocks below the KV pool take.",
    labels=(TIER,),
)
TIER_CAPACITY = Metric(
    name="plimsoll_tier_capacity_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory or disk that blocks below the KV pool may take; 0: there is no such tier.",
    labels=(TIER,),
)
TIER_SPILLED = Metric(
    name="plimsoll_tier_spilled_blocks_total",
    kind=Kind.COUNTER,
    unit="blocks",
    help="Blocks that left the KV pool for the host tier.",
)
TIER_LOST = Metric(
    name="plimsoll_tier_lost_blocks_total",
    kind=Kind.COUNTER,
    unit="blocks",
    help="Blocks that left the KV pool when the host tier had no room.",
)
TIER_LOADED = Metric(
    name="plimsoll_tier_loaded_blocks_total",
    kind=Kind.COUNTER,
    unit="blocks",
    help="Blocks that came back into the KV pool.",
)
TIER_DROPPED = Metric(
    name="plimsoll_tier_dropped_blocks_total",
    kind=Kind.COUNTER,
    unit="blocks",
    help="Blocks that disk and remote store did not take.",
)
TIER_LOADS = Metric(
    name="plimsoll_tier_open_loads",
    kind=Kind.GAUGE,
    help="Loads of blocks that are under way.",
)
TIER_EXPIRED = Metric(
    name="plimsoll_tier_expired_loads_total",
    kind=Kind.COUNTER,
    help="Loads of blocks that were given up at their deadline.",
)
TIER_FAILURES = Metric(
    name="plimsoll_tier_failures_total",
    kind=Kind.COUNTER,
    help="Failures of disk and remote store.",
)

METRICS = (
    *(BLOCKS, CAPACITY, REACH, GOAL, CEILING, SHARED, BLOCK_SIZE, EVICTED),
    *(BLOCK_TOKENS, SLACK_TOKENS, FREE_LOW),
    *(LOOKUP_TOKENS, HIT_TOKENS, MISSES, REGRETTED_TOKENS, PREEMPTIONS, SWAP),
    *(TIER_USED, TIER_CAPACITY, TIER_SPILLED, TIER_LOST, TIER_LOADED, TIER_DROPPED),
    *(TIER_LOADS, TIER_EXPIRED, TIER_FAILURES),
)
