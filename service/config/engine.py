"""Settings of the engine process: model, KV cache, scheduling."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from service.config.about import MIB, about


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the engine process needs to know; it travels to it as JSON."""

    model: Annotated[
        str,
        about("Model", "Alias, GGUF file or Hugging Face folder to serve.", min_length=1),
    ] = "smollm2-135m"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        about("Model", "Data type of weights and matrix products; auto is bfloat16."),
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
    kv_memory_bytes: (
        Annotated[
            int,
            about(
                "KV cache",
                "Memory of the KV pool; unset: a quarter of the free memory, at most 1GiB.",
                "bytes",
                ge=MIB,
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
    max_context_tokens: (
        Annotated[
            int,
            about(
                "Model",
                "Longest prompt plus output; unset: what model and KV pool allow.",
                "tokens",
                ge=2,
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

    def __post_init__(self) -> None:
        if self.kv_blocks is not None and self.kv_memory_bytes is not None:
            raise ValueError(
                f"kv_blocks = {self.kv_blocks} and kv_memory_bytes = {self.kv_memory_bytes}: "
                "set one of them, not both"
            )
