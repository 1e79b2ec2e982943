"""Settings of the engine process: model, KV cache, scheduling."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from service.config.about import GIB, MIB, about
from service.config.tenants import parse_tenant_shares

# How the front gives an engine its settings, as JSON: unlike a command line, it is not shown to
# other users, and the URL of a store may have a password in it.
SETTINGS_VARIABLE = "PLIMSOLL_ENGINE_SETTINGS"
# And one that replaces another the sizes of that; not set for the first one.
PREDECESSOR_VARIABLE = "PLIMSOLL_ENGINE_PREDECESSOR"


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the engine process needs to know; it travels to it as JSON."""

    model: Annotated[
        str,
        about("Model", "Alias, GGUF file or Hugging Face folder to serve.", min_length=1),
    ] = "smollm2-135m"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        about(
            "Model",
            "Data type of weights and matrix products; auto is bfloat16. With float32 no bit of an "
            "answer depends on other requests, preemptions and restarts, unless packed_weights is "
            "off.",
        ),
    ] = "auto"
    packed_weights: Annotated[
        Literal["auto", "on", "off"],
        about(
            "Model",
            "Keep a float32 copy of bfloat16 weights (4 bytes per parameter) for CPUs without "
            "bfloat16 instructions, several times faster there; auto: where needed and the copy "
            "fits in half of the free memory.",
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        about("KV cache", "Data type of the KV cache; auto takes that of the weights."),
    ] = "auto"
    block_tokens: Annotated[
        int,
        about(
            "KV cache",
            "Tokens of one KV block; prefixes are shared by whole blocks.",
            "tokens",
            ge=1,
            le=256,
        ),
    ] = 16
    device_memory_bytes: (
        Annotated[
            int,
            about(
                "Device memory",
                "Memory that the engine has: process, weights, steps and KV pool together, so that "
                "a CPU behaves like a GPU with this much, at most what the machine and its control "
                "groups have; unset: all of that.",
                "bytes",
                ge=64 * MIB,
                le=2**47,
            ),
        ]
        | None
    ) = None
    gpu_memory_utilization: Annotated[
        float,
        about(
            "Device memory",
            "Share of device_memory_bytes that is in use after the start, the largest step "
            "included: the pool gets what is left of it. Without effect where kv_blocks or "
            "kv_memory_bytes is set, or device_memory_bytes is not.",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.9
    kv_memory_bytes: (
        Annotated[
            int,
            about(
                "KV cache",
                "Memory of the KV pool; unset: a quarter of the free memory, at most 1GiB, or what "
                "device_memory_bytes leaves.",
                "bytes",
                ge=MIB,
                le=2**47,
            ),
        ]
        | None
    ) = None
    kv_memory_max_bytes: (
        Annotated[
            int,
            about(
                "KV cache",
                "Most memory that the KV pool may grow to while it serves; unset: its size at the "
                "start, or all that device_memory_bytes leaves. Reserves addresses, not memory.",
                "bytes",
                ge=MIB,
                le=2**47,
            ),
        ]
        | None
    ) = None
    kv_blocks: (
        Annotated[
            int,
            about(
                "KV cache",
                "Size of the KV pool in blocks, instead of kv_memory_bytes.",
                "blocks",
                ge=1,
                le=2**31 - 2,
            ),
        ]
        | None
    ) = None
    kv_core: Annotated[
        Literal["auto", "native", "python"],
        about(
            "KV cache",
            "Code that manages the blocks; auto: native where it was built, else python.",
        ),
    ] = "auto"
    tenant_shares: (
        Annotated[
            str,
            about(
                "KV cache",
                "Share of the KV pool that tenants are guaranteed and may have in use at most, in "
                "percent, as interactive=30-100,batch=0-50; unset: all are equal.",
                min_length=1,
            ),
        ]
        | None
    ) = None
    priority_cache_seconds: Annotated[
        float,
        about(
            "KV cache",
            "Time for which cached blocks of requests with a priority above 0 are evicted after "
            "those of others.",
            "seconds",
            ge=0.0,
            le=604_800.0,
        ),
    ] = 600.0
    host_cache_bytes: Annotated[
        int,
        about(
            "Cache tiers",
            "Host memory for blocks that leave the KV pool; 0: off, and so are the other tiers.",
            "bytes",
            ge=0,
            le=2**47,
        ),
    ] = 0
    disk_cache_folder: (
        Annotated[
            str,
            about(
                "Cache tiers",
                "Folder for blocks that leave the host tier; they outlive a restart. A shutdown "
                "writes for 2 seconds what the host tier has. Unset: off.",
                min_length=1,
            ),
        ]
        | None
    ) = None
    disk_cache_bytes: Annotated[
        int,
        about(
            "Cache tiers",
            "Most that is kept in disk_cache_folder.",
            "bytes",
            ge=MIB,
            le=2**50,
        ),
    ] = 8 * GIB
    remote_cache_url: (
        Annotated[
            str,
            about(
                "Cache tiers",
                "Redis or Valkey server that replicas of this model share, as "
                "redis://host:6379/0; one with a password belongs in the variable or the file, "
                "not on the command line. Unset: off.",
                min_length=1,
            ),
        ]
        | None
    ) = None
    tier_timeout_seconds: Annotated[
        float,
        about(
            "Cache tiers",
            "Time for which a request waits for its blocks from a tier before it computes them.",
            "seconds",
            ge=0.01,
            le=600.0,
        ),
    ] = 5.0
    max_context_tokens: (
        Annotated[
            int,
            about(
                "Model",
                "Longest prompt plus output; unset: what model and KV pool allow.",
                "tokens",
                ge=2,
                le=2**24,
            ),
        ]
        | None
    ) = None
    max_running_sequences: Annotated[
        int,
        about(
            "Scheduling",
            "Most sequences in the batch of a step; in any case less than max_step_tokens.",
            "sequences",
            ge=1,
            le=4096,
        ),
    ] = 64
    max_step_tokens: Annotated[
        int,
        about(
            "Scheduling",
            "Token budget of one step, decode and prefill together.",
            "tokens",
            ge=1,
            le=65536,
        ),
    ] = 512
    prefill_chunk_tokens: Annotated[
        int,
        about(
            "Scheduling",
            "Most prompt tokens that one sequence computes in one step.",
            "tokens",
            ge=1,
            le=65536,
        ),
    ] = 256
    load_line: Annotated[
        float,
        about(
            "Scheduling",
            "Share of the KV blocks that admission may fill; the rest is left to the growth of "
            "running sequences.",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.9
    max_admission_skips: Annotated[
        int,
        about(
            "Scheduling",
            "Sequences admitted past one that does not fit yet before all others wait for it.",
            "sequences",
            ge=0,
            le=1_000_000,
        ),
    ] = 16
    prompt_logprob_rows: Annotated[
        int,
        about(
            "Scheduling",
            "Most prompt tokens per step whose logprobs are computed; each costs 4 bytes per token "
            "of the vocabulary.",
            "tokens",
            ge=1,
            le=65536,
        ),
    ] = 64
    pressure_elevated_share: Annotated[
        float,
        about(
            "Pressure",
            "Share of held KV blocks at which the level ELEVATED is entered; left 0.1 below.",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.75
    pressure_high_share: Annotated[
        float,
        about(
            "Pressure",
            "Share of held KV blocks at which the level HIGH is entered; left 0.1 below.",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.9
    pool_wait_seconds: Annotated[
        float,
        about(
            "Pressure",
            "Time that a request waits while others have the memory of the device, be it that it "
            "is too large for a pool that had to give memory back or that not even a step of it "
            "alone finds memory, before it ends with an error.",
            "seconds",
            ge=0.0,
            le=86_400.0,
        ),
    ] = 30.0
    threads: (
        Annotated[
            int,
            about(
                "Model",
                "Threads of the arithmetic; unset: one per physical core that the process may use.",
                "threads",
                ge=1,
                le=1024,
            ),
        ]
        | None
    ) = None

    allow_faults: Annotated[
        bool,
        about(
            "Faults",
            "Let the admin API and fault_plan make things go wrong on purpose: for drills and "
            "tests, never where users depend on it.",
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.kv_blocks is not None and self.kv_memory_bytes is not None:
            raise ValueError(
                f"kv_blocks = {self.kv_blocks} and kv_memory_bytes = {self.kv_memory_bytes}: "
                "set one of them, not both"
            )
        for name in ("disk_cache_folder", "remote_cache_url"):
            if getattr(self, name) is not None and not self.host_cache_bytes:
                raise ValueError(
                    f"{name} is set: blocks pass through the host tier, so host_cache_bytes must "
                    "be above 0"
                )
        if self.pressure_high_share < self.pressure_elevated_share:
            raise ValueError(
                f"pressure_high_share = {self.pressure_high_share} is below "
                f"pressure_elevated_share = {self.pressure_elevated_share}"
            )
        parse_tenant_shares(self.tenant_shares or "")
