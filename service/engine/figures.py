"""What an engine tells of itself: plain numbers, and what happened to its memory."""

from __future__ import annotations

import enum

import msgspec

from kvcache.pressure import FOREVER_SECONDS, PressureLevel

# How far back the watermarks of the engine reach: far longer than from one scrape to the next.
WATERMARK_SECONDS = 60.0


class OomRung(enum.IntEnum):
    """What is done when the device has no memory for a step, from the mildest on."""

    RETRY = 1  # cached allocator memory is given back, the token budget of a step is halved
    SHRINK = 2  # the KV pool gives memory back
    REQUEUE = 3  # all sequences but one lose their blocks and are computed again later
    FAIL = 4  # the one that does not even fit alone ends with an error


class GovernorAction(enum.IntEnum):
    """What the governor does before memory runs out."""

    NARROW = 1  # fewer prefill tokens a step
    CLOSE = 2  # nobody is admitted while something runs
    SHRINK = 3  # the KV pool gives memory back
    GROW = 4  # the KV pool takes memory again, up to what was ordered


class PreemptionMode(enum.IntEnum):
    """How the blocks of a preempted sequence come back, see `kvcache.PreemptionMode`."""

    TRIM = 1
    SWAP = 2
    RECOMPUTE = 3


class PreemptionReason(enum.IntEnum):
    """Why a sequence lost blocks."""

    KV_FULL = 1  # a running sequence needed a block and none was to be had
    PRIORITY = 2  # a waiting sequence of higher priority took its place
    POOL_SHRUNK = 3  # the pool became smaller, by order or for want of device memory
    OOM = 4  # a step found no device memory, and only one sequence was kept


class Vitals(msgspec.Struct, array_like=True, frozen=True):
    """Memory as the governor saw it last, at most 0.1 s ago, and what it did about it.

    The bytes by owner sum to `device_total_bytes - device_free_bytes`. Counters count since
    the engine's start.
    """

    taken_seconds: float  # monotonic
    level: PressureLevel
    device_total_bytes: int
    device_free_bytes: int
    weights_bytes: int
    kv_bytes: int
    activation_bytes: int  # kept by the allocator for the next step included
    graph_bytes: int
    context_bytes: int  # of the runtime itself
    other_bytes: int  # other processes, and what no owner claims
    reclaimable_bytes: int  # kept by the allocator and not in use: free if need be
    demand_bytes: int  # what the largest next step takes
    host_available_bytes: int
    kv_exhaustion_seconds: float = FOREVER_SECONDS  # forecast: until no block is free
    device_exhaustion_seconds: float = FOREVER_SECONDS  # forecast: until a step finds no memory
    step_tokens: int = 0  # token budget of a step in force
    prefill_tokens: int = 0  # of these, for prefill
    admits: bool = True
    pool_goal_blocks: int = 0  # usable blocks that the governor aims at
    pool_ceiling_blocks: int = 0  # that were ordered
    allocator_retries: int = 0  # allocations that needed the allocator's cache to be dropped
    rungs: tuple[int, int, int, int] = (0, 0, 0, 0)  # of the OOM ladder, in order of `OomRung`
    actions: tuple[int, int, int, int] = (0, 0, 0, 0)  # in order of `GovernorAction`
    allocator_allocated_bytes: int = 0  # tensors that live
    allocator_reserved_bytes: int = 0  # these, and what the allocator keeps for the next ones
    allocator_inactive_bytes: int = 0  # of what it keeps, parts of segments that are in use
    allocator_ooms: int = 0  # allocations that failed though that cache had been dropped
    headroom_low_bytes: int = 0  # the least of the last `WATERMARK_SECONDS`
    demand_high_bytes: int = 0  # the largest of these
    kv_free_low_blocks: int = 0  # free and cached, the least of these

    @property
    def headroom_bytes(self) -> int:
        """What a step can take: an allocation fails if and only if it wants more."""
        return self.device_free_bytes + self.reclaimable_bytes


class Incident(msgspec.Struct, array_like=True, frozen=True):
    """Something that is worth a flight record: memory ran out, or the engine is about to die."""

    kind: str  # "oom", or "device lost" or "defect", which are last words
    cause: str
    rung: OomRung | None  # None: not a rung of the ladder
    wanted_bytes: int  # 0 where no allocation failed
    sequence_ids: list[int]  # in the batch
    step_tokens: int  # of the step that failed
    vitals: Vitals | None

    @property
    def is_fatal(self) -> bool:
        """These are last words: the engine ends, and this is why."""
        return self.kind in ("device lost", "defect")


class TierFigures(msgspec.Struct, array_like=True, frozen=True):
    """Plain numbers of the tiers below the pool. Counters count since the engine's start."""

    host_bytes: int  # in use
    host_capacity_bytes: int
    spilled_blocks: int  # left the pool for the host tier
    lost_blocks: int  # left the pool when the host tier had no room
    loaded_blocks: int  # came back
    loads: int  # that are under way
    expired_loads: int  # given up at their deadline
    disk_bytes: int  # in use; 0 without a disk tier
    disk_capacity_bytes: int
    dropped_blocks: int  # that disk and remote store did not take
    failures: int  # of disk and remote store
    swapped_out_blocks: int = 0  # of preempted sequences, kept by the host for their return
    swapped_in_blocks: int = 0  # brought back for sequences that had been preempted


class EngineStats(msgspec.Struct, array_like=True, frozen=True):
    """Plain numbers of the engine after a step. Counters count since its start."""

    running: int
    waiting: int
    preempted: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    blocks_reserved: int  # of the held ones, promised and not yet written
    blocks_shared: int
    steps: int
    prefill_tokens: int  # computed, not cached
    decode_tokens: int  # generated
    lookup_tokens: int
    hit_tokens: int
    evicted_blocks: int
    preemptions: int
    step_seconds: float  # moving average
    last_step_seconds: float  # monotonic time when the last step ended
    blocks_kept: int = 0  # by pins and transfers, neither held, free nor cached
    trims: int = 0  # preemptions that took only the tail
    swaps: int = 0  # preemptions whose blocks were copied to the host
    tiers: TierFigures | None = None  # None: there are none
    vitals: Vitals | None = None  # None: nobody has looked yet
    busy_seconds: float = 0.0  # spent in steps, a counter
    slack_tokens: int = 0  # slots of held blocks that no token has taken yet
    regretted_tokens: int = 0  # evicted and then asked for again
    misses: tuple[int, ...] = (0,) * 5  # in order of `kvcache.MissReason`
    # By mode, and for each mode by reason: in order of `PreemptionMode` and `PreemptionReason`.
    preemption_counts: tuple[int, ...] = (0,) * (len(PreemptionMode) * len(PreemptionReason))
    # In block tables of its sequences; a block that two of them share counts for both.
    tenant_blocks: dict[str, int] = {}

    @property
    def held_share(self) -> float:
        """Share of the pool that sequences hold; cached blocks count as free."""
        return self.blocks_held / max(1, self.blocks_total)
