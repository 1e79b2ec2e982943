"""What is shown of servers, as plain data. The names of the fields are the keys of `--json`.

None is what a server does not tell. Bytes, blocks, tokens and seconds are said in the names;
ratios are from 0 to 1. `..._since_last_look` is since the last look at the same server process,
and None on the first; `recent_...` is over `window_seconds`, which reach back to the last look,
and to the server's start on the first.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory of the device as the server sees it."""

    capacity_bytes: float | None
    owned_bytes: dict[str, float]  # by owner; together with `free_bytes` the capacity
    free_bytes: float | None
    headroom_bytes: float | None  # a step that needs more runs out of memory
    headroom_low_bytes: float | None  # least of the last 60 s
    demand_bytes: float | None  # what the largest next step takes
    demand_high_bytes: float | None  # largest of the last 60 s
    exhaustion_seconds: float | None  # forecast; 86400: not in sight
    is_stale: bool  # looks at the server have found the same figures for seconds


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU as its driver sees it, whoever uses it."""

    gpu: str  # index; of a part of a GPU with that of the part
    capacity_bytes: float | None
    used_bytes: float | None
    free_bytes: float | None
    reserved_bytes: float | None  # by driver and firmware
    process_bytes: float | None  # of this server's processes; None: the driver does not tell
    utilization_ratio: float | None


@dataclass(frozen=True, slots=True)
class KvView:
    """The KV pool."""

    capacity_blocks: float | None
    blocks: dict[str, float]  # by state; together the capacity
    used_ratio: float | None  # neither free nor cached
    free_low_blocks: float | None  # free or cached, least of the last 60 s
    block_bytes: float | None
    slack_tokens: float | None  # slots of held blocks without a token: what paging wastes
    slack_ratio: float | None  # of the slots of active and reserved blocks
    exhaustion_seconds: float | None  # forecast; 86400: not in sight


@dataclass(frozen=True, slots=True)
class LoadView:
    """Requests and how fast they are served."""

    running_requests: float | None
    waiting_requests: float | None
    slow_readers: float | None  # requests with output that waits for the client to read it
    window_seconds: float | None
    recent_tokens_per_second: float | None
    recent_first_token_p50_seconds: float | None
    recent_first_token_p99_seconds: float | None
    recent_token_gap_p50_seconds: float | None
    recent_token_gap_p99_seconds: float | None
    recent_prefix_hit_ratio: float | None  # of tokens looked up in the prefix cache
    prefix_hit_ratio: float | None  # the same since the server's start


@dataclass(frozen=True, slots=True)
class CountView:
    """Events of a kind."""

    since_last_look: float | None
    total: float
    by_kind: dict[str, float]  # of the total; empty where there is one kind only


@dataclass(frozen=True, slots=True)
class GovernorView:
    """What the governor allows now."""

    step_budget_tokens: float | None
    prefill_budget_tokens: float | None
    admissions_open: bool | None
    pool_goal_blocks: float | None
    pool_ceiling_blocks: float | None  # by order


@dataclass(frozen=True, slots=True)
class ServerView:
    """All of one server that answered."""

    address: str
    model: str | None
    version: str | None
    device: str | None
    weights_dtype: str | None
    kv_dtype: str | None
    attention_backend: str | None
    state: str | None
    up_seconds: float | None
    pressure_level: int | None  # 1 normal, 2 elevated, 3 high, 4 critical
    gpus: tuple[GpuView, ...]
    memory: MemoryView
    kv: KvView
    load: LoadView
    counts: dict[str, CountView]  # preemptions, oom_rungs, allocator_retries, engine_restarts
    governor: GovernorView


@dataclass(frozen=True, slots=True)
class SilentView:
    """A server that did not answer."""

    address: str
    error: str
