"""From the pages of two looks at a server to what is shown of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from service.smi.buckets import increase
from service.smi.page import Page
from service.smi.view import (
    CountView,
    GovernorView,
    GpuView,
    KvView,
    LoadView,
    MemoryView,
    ServerView,
)
from service.telemetry.catalog import MODEL_LABEL, Metric, cache, gpu, memory, requests, server

# The same sample is told with another microsecond each time: it goes through two clocks.
_SAME_SAMPLE_SECONDS = 0.02
# An idle engine tells of its memory about once a second: a sample that stays for three times as
# long is old, and one that two quick looks find is not.
_STALE_SECONDS = 3.0
_NOT_USED_STATES = ("free", "cached")
_HELD_STATES = ("active", "reserved")


@dataclass(frozen=True, slots=True)
class Look:
    """A page, and when it was had."""

    page: Page
    unix_seconds: float
    monotonic_seconds: float
    # The age of a sample by our own clock, which may differ from that of the server.
    sample_met_seconds: float  # monotonic: when a look first had the memory sample of this page

    @classmethod
    def after(
        cls, before: Look | None, page: Page, unix_seconds: float, monotonic_seconds: float
    ) -> Look:
        """The look that follows `before`, the last one that had an answer of the same server."""
        met_seconds = monotonic_seconds
        if before is not None and _is_same_sample(before.page, page):
            met_seconds = before.sample_met_seconds
        return cls(page, unix_seconds, monotonic_seconds, met_seconds)


def _is_same_sample(before: Page, now: Page) -> bool:
    seconds_before, seconds_now = before.value(memory.SAMPLED), now.value(memory.SAMPLED)
    if seconds_before is None or seconds_now is None:
        return False
    return abs(seconds_now - seconds_before) < _SAME_SAMPLE_SECONDS


def view(address: str, now: Look, before: Look | None) -> ServerView:
    """What to show of the server at `address`; `before` is the last look that had an answer."""
    page = now.page
    if before is not None and before.page.start_seconds != page.start_seconds:
        before = None  # another server process, whose counters began at 0
    earlier = None if before is None else before.page
    about, model = page.info(server.INFO), page.info(server.MODEL_INFO)
    states = page.by_label(server.STATE, "state")
    level = page.value(memory.PRESSURE)
    return ServerView(
        address=address,
        model=about.get(MODEL_LABEL),
        version=about.get("version"),
        device=model.get("device"),
        weights_dtype=model.get("weights_dtype"),
        kv_dtype=model.get("kv_dtype"),
        attention_backend=model.get("attention_backend"),
        state=next((state for state, holds in states.items() if holds), None),
        up_seconds=_up_seconds(now),
        pressure_level=None if level is None else int(level),
        gpus=_gpus(page),
        memory=_memory(now),
        kv=_kv(page),
        load=_load(now, before),
        counts=_counts(page, earlier),
        governor=_governor(page),
    )


def _up_seconds(now: Look) -> float | None:
    start_seconds = now.page.start_seconds
    # Its clock may be ahead of ours.
    return None if start_seconds is None else max(0.0, now.unix_seconds - start_seconds)


def _gpus(page: Page) -> tuple[GpuView, ...]:
    label = gpu.GPU.name
    columns = {
        metric: page.by_label(metric, label)
        for metric in (gpu.CAPACITY, gpu.USED, gpu.FREE, gpu.RESERVED, gpu.UTILIZATION)
    }
    known = page.by_label(gpu.PROCESS_MEMORY_KNOWN, label)
    process = page.by_label(gpu.PROCESS_MEMORY, label)
    names = sorted({name for column in columns.values() for name in column}, key=_gpu_order)
    return tuple(
        GpuView(
            gpu=name,
            capacity_bytes=columns[gpu.CAPACITY].get(name),
            used_bytes=columns[gpu.USED].get(name),
            free_bytes=columns[gpu.FREE].get(name),
            reserved_bytes=columns[gpu.RESERVED].get(name),
            process_bytes=process.get(name) if known.get(name) else None,
            utilization_ratio=columns[gpu.UTILIZATION].get(name),
        )
        for name in names
    )


def _gpu_order(name: str) -> tuple[tuple[int, str], ...]:
    """2 before 10, and the parts of a GPU, as 0:1, after it."""
    parts = name.split(":")
    # Python refuses to read a number of thousands of digits.
    return tuple((int(part) if re.fullmatch("[0-9]{1,9}", part) else 0, part) for part in parts)


def _memory(now: Look) -> MemoryView:
    page = now.page
    return MemoryView(
        capacity_bytes=page.value(memory.CAPACITY),
        owned_bytes=page.by_label(memory.OWNED, "owner"),
        free_bytes=page.value(memory.FREE),
        headroom_bytes=page.value(memory.HEADROOM),
        headroom_low_bytes=page.value(memory.HEADROOM_LOW),
        demand_bytes=page.value(memory.DEMAND),
        demand_high_bytes=page.value(memory.DEMAND_HIGH),
        exhaustion_seconds=page.value(memory.DEVICE_EXHAUSTION),
        is_stale=now.monotonic_seconds - now.sample_met_seconds >= _STALE_SECONDS,
    )


def _kv(page: Page) -> KvView:
    blocks = page.by_label(cache.BLOCKS, "state")
    capacity = page.value(cache.CAPACITY)
    used = sum(count for state, count in blocks.items() if state not in _NOT_USED_STATES)
    slack, block_tokens = page.value(cache.SLACK_TOKENS), page.value(cache.BLOCK_TOKENS)
    held = sum(blocks.get(state, 0.0) for state in _HELD_STATES)
    return KvView(
        capacity_blocks=capacity,
        blocks=blocks,
        used_ratio=used / capacity if blocks and capacity else None,
        free_low_blocks=page.value(cache.FREE_LOW),
        block_bytes=page.value(cache.BLOCK_SIZE),
        slack_tokens=slack,
        slack_ratio=None if block_tokens is None else _ratio(slack, held * block_tokens),
        exhaustion_seconds=page.value(memory.KV_EXHAUSTION),
    )


def _load(now: Look, before: Look | None) -> LoadView:
    page, earlier = now.page, None if before is None else before.page
    if before is None:
        window_seconds = _up_seconds(now)
    else:
        window_seconds = now.monotonic_seconds - before.monotonic_seconds
    tokens = _grown(requests.OUTPUT_TOKENS, page, earlier)
    first = _quantiles(requests.FIRST_TOKEN, page, earlier)
    gap = _quantiles(requests.TOKEN_GAP, page, earlier)
    return LoadView(
        running_requests=page.value(requests.LIVE, state="running"),
        waiting_requests=page.value(requests.LIVE, state="waiting"),
        slow_readers=page.value(requests.SLOW_STREAMS),
        window_seconds=window_seconds,
        recent_tokens_per_second=_ratio(tokens, window_seconds),
        recent_first_token_p50_seconds=first[0],
        recent_first_token_p99_seconds=first[1],
        recent_token_gap_p50_seconds=gap[0],
        recent_token_gap_p99_seconds=gap[1],
        recent_prefix_hit_ratio=_ratio(
            _grown(cache.HIT_TOKENS, page, earlier), _grown(cache.LOOKUP_TOKENS, page, earlier)
        ),
        prefix_hit_ratio=_ratio(page.value(cache.HIT_TOKENS), page.value(cache.LOOKUP_TOKENS)),
    )


def _grown(metric: Metric, page: Page, earlier: Page | None) -> float | None:
    now = page.value(metric)
    if now is None:
        return None
    return increase(now, None if earlier is None else earlier.value(metric))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _quantiles(
    metric: Metric, page: Page, earlier: Page | None
) -> tuple[float | None, float | None]:
    """The median, and the 99th percentile."""
    buckets = page.buckets(metric)
    if buckets is None:
        return None, None
    grown = buckets.since(None if earlier is None else earlier.buckets(metric))
    return grown.quantile(0.5), grown.quantile(0.99)


def _counts(page: Page, earlier: Page | None) -> dict[str, CountView]:
    kinds: tuple[tuple[str, Metric, str], ...] = (
        # Why a sequence lost its blocks says more than how they come back.
        ("preemptions", cache.PREEMPTIONS, "reason"),
        ("oom_rungs", memory.OOM_RUNGS, "rung"),
        ("allocator_retries", memory.ALLOCATOR_RETRIES, ""),
        ("engine_restarts", server.RESTARTS, ""),
    )
    counts = {}
    for name, metric, label in kinds:
        total = page.value(metric)
        if total is not None:
            since = increase(total, earlier.value(metric)) if earlier is not None else None
            by_kind = page.by_label(metric, label)
            counts[name] = CountView(since_last_look=since, total=total, by_kind=by_kind)
    return counts


def _governor(page: Page) -> GovernorView:
    admissions = page.value(memory.ADMISSIONS_OPEN)
    return GovernorView(
        step_budget_tokens=page.value(memory.STEP_BUDGET),
        prefill_budget_tokens=page.value(memory.PREFILL_BUDGET),
        admissions_open=None if admissions is None else bool(admissions),
        pool_goal_blocks=page.value(cache.GOAL),
        pool_ceiling_blocks=page.value(cache.CEILING),
    )
