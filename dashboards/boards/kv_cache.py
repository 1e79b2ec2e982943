"""Who has the blocks of the KV pool, what is lost when it is full, and what the cache saves."""

from __future__ import annotations

from dashboards.boards import quantities, uids
from dashboards.boards.annotations import usual_events
from dashboards.boards.board import Board, Section, board
from dashboards.boards.panels import Limits, Note, Paint, PanelBuilder, Unit, events, lines
from dashboards.boards.queries import (
    SERVER,
    Query,
    gauge,
    highest,
    increase,
    lowest,
    named,
    share_or_zero,
    total,
)
from service.telemetry.catalog import cache, memory, requests


def build() -> Board:
    """The dashboard."""
    return board(
        uids.KV_CACHE,
        "KV cache",
        "Blocks of the KV pool, preemptions, prefixes, and the tiers below.",
        (
            Section("The pool", _pool()),
            Section("When it is full", _shortage()),
            Section("Prefixes", _prefixes()),
            Section("Tiers below the pool", _tiers()),
        ),
        usual_events(),
        ("kv-cache",),
    )


def _pool() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Blocks by state",
            Query(total(gauge(cache.BLOCKS), ("state",)), "{{state}}"),
            unit=Unit.COUNT,
            note=Note(
                "All blocks of the pools by state; together they are the capacity. Cached ones "
                "are free if need be.",
                "Little free and little cached: the next sequence preempts another. Much kept: "
                "pins and transfers hold the pool, see who ordered them.",
            ),
            stacked=True,
            axis="blocks",
        ),
        lines(
            "Pool in use",
            Query(quantities.kv_usage(), named()),
            unit=Unit.SHARE,
            note=Note(
                "Share of each pool that nobody else can have.",
                "Above 90 % for minutes: add replicas, shorten contexts, or raise the memory "
                "utilization if VRAM to OOM shows headroom.",
            ),
            limits=quantities.FULL_POOL,
            full=1,
        ),
        lines(
            "Pool size",
            Query(total(gauge(cache.CAPACITY), SERVER), named("capacity")),
            Query(total(gauge(cache.GOAL), SERVER), named("goal")),
            Query(total(gauge(cache.CEILING), SERVER), named("ceiling")),
            Query(total(gauge(cache.REACH), SERVER), named("reach")),
            unit=Unit.COUNT,
            note=Note(
                "Blocks that the pool has, that the governor aims at, that it may have by order, "
                "and that it can ever have in this engine.",
                "A goal below the ceiling: the governor gives memory back, see VRAM to OOM. A "
                "ceiling below the reach: by order; raise the utilization to get it back.",
            ),
            paints={
                "goal": Paint("yellow", dashed=True),
                "ceiling": Paint("orange"),
                "reach": Paint("red"),
            },
            axis="blocks",
        ),
        lines(
            "Blocks left",
            Query(
                total(gauge(cache.BLOCKS, state=("free", "cached")), SERVER),
                named("free or cached"),
            ),
            Query(lowest(gauge(cache.FREE_LOW), SERVER), named("lowest of 60 s")),
            unit=Unit.COUNT,
            note=Note(
                "Blocks that a sequence can get now, and the fewest there were in the last "
                "minute: what a scrape every 15 s does not see.",
                "A low that touches 0 while the line does not: bursts. Narrow them at the gateway "
                "or keep more free.",
            ),
            paints={"lowest of 60 s": Paint("red", dashed=True)},
            axis="blocks",
        ),
        lines(
            "Pool runs out in",
            Query(quantities.drawn_time_left(memory.KV_EXHAUSTION), named()),
            unit=Unit.SECONDS,
            note=Note(
                "Forecast of the engine until no block is free. An hour or more lies at the top.",
                "Below a minute preemptions come next; below 5 minutes there is time to add a "
                "replica.",
            ),
            limits=quantities.TIME_LEFT_SECONDS,
        ),
        lines(
            "Waste in held blocks",
            Query(share_or_zero(total(gauge(cache.SLACK_TOKENS), SERVER), _held_tokens()), named()),
            unit=Unit.SHARE,
            note=Note(
                "Share of the slots of held blocks that have no token, mostly in the last block "
                "of each sequence.",
                "Above 20 %: sequences are short for this block size; take smaller blocks.",
            ),
            limits=Limits("green", ((0.2, "orange"), (0.4, "red"))),
            full=1,
        ),
    )


def _held_tokens() -> str:
    held = total(gauge(cache.BLOCKS, state=("active", "reserved", "kept")), SERVER)
    return f"({held} * {highest(gauge(cache.BLOCK_TOKENS), SERVER)})"


def _shortage() -> tuple[PanelBuilder, ...]:
    return (
        events(
            "Preemptions",
            Query(total(increase(cache.PREEMPTIONS), ("mode", "reason")), "{{mode}}: {{reason}}"),
            note=Note(
                "Sequences that lost blocks: trim loses the last ones, swap copies all to the "
                "host, recompute computes all again.",
                "kv_full: too many or too long sequences; pool_shrunk and oom: the device is the "
                "limit, see VRAM to OOM; priority: as ordered.",
            ),
        ),
        lines(
            "Swapped bytes",
            Query(quantities.per_second(cache.SWAP, "direction"), "{{direction}}"),
            unit=Unit.BYTES_PER_SECOND,
            note=Note(
                "Bytes a second that preempted sequences take out to the host and in again.",
                "Both directions high for minutes is ping-pong: admit fewer sequences at a time.",
            ),
        ),
        lines(
            "Tokens computed again",
            Query(quantities.per_second(requests.RECOMPUTED_TOKENS), "after preemption or death"),
            Query(quantities.per_second(cache.REGRETTED_TOKENS), "regretted eviction"),
            unit=Unit.TOKENS_PER_SECOND,
            note=Note(
                "Work done twice: tokens of preempted or resubmitted sequences, and prefixes "
                "asked for after they had been evicted.",
                "Much regret: the cache is too small for the prefixes in use; add a host tier or "
                "replicas, or route by prefix.",
            ),
        ),
        lines(
            "Evicted blocks",
            Query(quantities.per_second(cache.EVICTED), "evicted"),
            unit=Unit.COUNT,
            note=Note(
                "Cached blocks a second that were given to somebody else. Normal in a full pool.",
                "It matters only together with regret and a falling hit share.",
            ),
            axis="blocks/s",
        ),
    )


def _prefixes() -> tuple[PanelBuilder, ...]:
    hits, lookups = (
        quantities.per_second(metric) for metric in (cache.HIT_TOKENS, cache.LOOKUP_TOKENS)
    )
    return (
        lines(
            "Prefix hits",
            Query(share_or_zero(hits, lookups), "hits"),
            unit=Unit.SHARE,
            note=Note(
                "Of the tokens that the prefix cache was asked for, the share it had. 0 when "
                "nothing was asked.",
                "A fall: other prompts, requests spread over more pods, or evictions; compare "
                "misses by reason.",
            ),
            full=1,
        ),
        lines(
            "Prefix tokens",
            Query(lookups, "asked for"),
            Query(hits, "found"),
            unit=Unit.TOKENS_PER_SECOND,
            note=Note(
                "Tokens a second that the prefix cache was asked for, and had.",
                "The gap is prefill that the engine must compute.",
            ),
        ),
        lines(
            "Misses by reason",
            Query(quantities.per_second(cache.MISSES, "reason"), "{{reason}}"),
            unit=Unit.COUNT,
            note=Note(
                "Look-ups a second that ended before the prompt did, by why.",
                "Evicted prefixes want a larger cache; prompts never seen want nothing.",
            ),
            axis="look-ups/s",
        ),
        lines(
            "Shared blocks",
            Query(total(gauge(cache.SHARED), SERVER), named()),
            unit=Unit.COUNT,
            note=Note(
                "Blocks with two or more holders: memory that prefixes save now.",
                "0 with common system prompts: check that they are the same to the token.",
            ),
            axis="blocks",
        ),
    )


def _tiers() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Tier size",
            Query(total(gauge(cache.TIER_USED), ("tier",)), "{{tier}} used"),
            Query(total(gauge(cache.TIER_CAPACITY), ("tier",)), "{{tier}} capacity"),
            unit=Unit.BYTES,
            note=Note(
                "Memory and disk that blocks below the pool take and may take; capacity 0: there "
                "is no such tier.",
                "A full tier drops its oldest blocks; give it more if prefixes are regretted.",
            ),
            paints={"capacity": Paint("red")},
        ),
        lines(
            "Tier traffic",
            Query(quantities.per_second(cache.TIER_SPILLED), "spilled"),
            Query(quantities.per_second(cache.TIER_LOADED), "loaded"),
            Query(quantities.per_second(cache.TIER_LOST), "lost, host was full"),
            Query(quantities.per_second(cache.TIER_DROPPED), "not taken by disk or remote"),
            unit=Unit.COUNT,
            note=Note(
                "Blocks a second that leave the pool for the host, come back, or are lost.",
                "Spilled and never loaded: the tier costs and does not pay. Lost: make the host "
                "tier larger.",
            ),
            axis="blocks/s",
        ),
        lines(
            "Loads under way",
            Query(total(gauge(cache.TIER_LOADS), SERVER), named()),
            unit=Unit.COUNT,
            note=Note(
                "Loads of blocks that have begun and not ended.",
                "If it only grows, disk or remote store hang; loads are given up at their "
                "deadline and the tokens computed.",
            ),
            axis="loads",
        ),
        events(
            "Tier failures",
            Query(total(increase(cache.TIER_FAILURES)), "failures of disk and remote"),
            Query(total(increase(cache.TIER_EXPIRED)), "loads given up"),
            note=Note(
                "Failures of disk and remote store, and loads that took too long. Requests go on "
                "without them.",
                "Look into the log of the server, then into disk or store.",
            ),
        ),
    )
