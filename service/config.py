"""Every setting of Plimsoll: its unit, default, bounds and one sentence of meaning.

`service.settings` fills these Structs from flags, environment, a TOML file and the
defaults below, and turns them into the text of `plimsoll serve --help`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

MIB = 1024**2


def _about(group: str, description: str, unit: str = "", **bounds: Any) -> msgspec.Meta:
    """Metadata of one setting; `bounds` are those of `msgspec.Meta`."""
    meta = {"description": description, "extra": {"group": group, "unit": unit}, **bounds}
    return msgspec.Meta(**meta)


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the engine process needs to know; it travels to it as JSON."""

    model: Annotated[
        str,
        _about("Model", "Alias, GGUF file or Hugging Face folder to serve.", min_length=1),
    ] = "smollm2-135m"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        _about("Model", "Data type of weights and matrix products; auto is bfloat16."),
    ] = "auto"
    packed_weights: Annotated[
        Literal["auto", "on", "off"],
        _about(
            "Model",
            "Keep a float32 copy of bfloat16 weights (4 bytes per parameter) for CPUs without "
            "bfloat16 instructions, several times faster there; auto: where needed and the copy "
            "fits in half of the free memory.",
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        _about("KV cache", "Data type of the KV cache; auto takes that of the weights."),
    ] = "auto"
    block_tokens: Annotated[
        int,
        _about(
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
            _about(
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
            _about(
                "KV cache",
                "Size of the KV pool in blocks, instead of kv_memory_bytes.",
                "blocks",
                ge=1,
                le=2**31 - 2,
            ),
        ]
        | None
    ) = None
    max_context_tokens: (
        Annotated[
            int,
            _about(
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
        _about(
            "Scheduling",
            "Most sequences in the batch of a step; in any case less than max_step_tokens.",
            "sequences",
            ge=1,
            le=4096,
        ),
    ] = 64
    max_step_tokens: Annotated[
        int,
        _about(
            "Scheduling",
            "Token budget of one step, decode and prefill together.",
            "tokens",
            ge=1,
            le=65536,
        ),
    ] = 512
    prefill_chunk_tokens: Annotated[
        int,
        _about(
            "Scheduling",
            "Most prompt tokens that one sequence computes in one step.",
            "tokens",
            ge=1,
            le=65536,
        ),
    ] = 256
    load_line: Annotated[
        float,
        _about(
            "Scheduling",
            "Share of the KV blocks that admission may fill; the rest is left to the growth of "
            "running sequences.",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.9
    max_admission_skips: Annotated[
        int,
        _about(
            "Scheduling",
            "Sequences admitted past one that does not fit yet before all others wait for it.",
            "sequences",
            ge=0,
            le=1_000_000,
        ),
    ] = 16
    prompt_logprob_rows: Annotated[
        int,
        _about(
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
            _about(
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


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that `plimsoll serve` can be told."""

    engine: EngineSettings = EngineSettings()

    host: Annotated[
        str,
        _about("Network", "Address to listen on; 0.0.0.0 or [::] for all.", min_length=1),
    ] = "127.0.0.1"
    port: Annotated[
        int, _about("Network", "Port of the inference API; 0 takes a free one.", ge=0, le=65535)
    ] = 9000
    admin_port: Annotated[
        int, _about("Network", "Port of the admin API; 0 takes a free one.", ge=0, le=65535)
    ] = 9001
    reflection: Annotated[
        bool, _about("Network", "Offer gRPC reflection, so that generic clients find the API.")
    ] = True
    max_request_bytes: Annotated[
        int,
        _about("Network", "Largest request message.", "bytes", ge=1024, le=1024 * MIB),
    ] = 4 * MIB
    max_streams_per_connection: Annotated[
        int,
        _about("Network", "Most concurrent calls of one connection.", "calls", ge=1, le=65536),
    ] = 512
    keepalive_seconds: Annotated[
        float,
        _about(
            "Network",
            "Silence on a connection after which the server asks whether the client is alive.",
            "seconds",
            ge=1.0,
            le=7200.0,
        ),
    ] = 20.0
    keepalive_timeout_seconds: Annotated[
        float,
        _about(
            "Network",
            "Wait for that answer before the connection is closed.",
            "seconds",
            ge=0.1,
            le=600.0,
        ),
    ] = 10.0

    served_model_name: (
        Annotated[
            str,
            _about(
                "Model",
                "Name that clients use; unset: alias, folder name, or file name without .gguf.",
                min_length=1,
            ),
        ]
        | None
    ) = None
    tokenizer_threads: Annotated[
        int,
        _about("Model", "Threads that tokenize prompts.", "threads", ge=1, le=256),
    ] = 2

    max_live_requests: Annotated[
        int,
        _about(
            "Requests",
            "Most requests at once, waiting ones included; more are refused with a retry hint.",
            "requests",
            ge=1,
            le=1_000_000,
        ),
    ] = 1024
    max_waiting_requests: Annotated[
        int,
        _about(
            "Requests",
            "Most requests that wait for admission; more are refused with a retry hint.",
            "requests",
            ge=1,
            le=1_000_000,
        ),
    ] = 256
    retry_hint_max_seconds: Annotated[
        float,
        _about(
            "Requests",
            "Longest wait that the retry hint asks of a refused client.",
            "seconds",
            ge=0.1,
            le=3600.0,
        ),
    ] = 30.0
    max_candidates: Annotated[
        int, _about("Requests", "Most candidates of one request.", "candidates", ge=1, le=16)
    ] = 16
    max_chat_messages: Annotated[
        int, _about("Requests", "Most messages of one conversation.", "messages", ge=1, le=4096)
    ] = 4096
    max_chat_bytes: Annotated[
        int,
        _about(
            "Requests",
            "Largest text that the chat template may make of a conversation.",
            "bytes",
            ge=1024,
            le=1024 * MIB,
        ),
    ] = 4 * MIB
    slow_reader_seconds: Annotated[
        float,
        _about(
            "Requests",
            "Time that output may wait for its client before the request is cut.",
            "seconds",
            gt=0.0,
            le=86400.0,
        ),
    ] = 30.0
    slow_reader_buffer_bytes: Annotated[
        int,
        _about(
            "Requests",
            "Output of one request that may wait for its client before the request is cut.",
            "bytes",
            ge=1024,
            le=1024 * MIB,
        ),
    ] = MIB
    allow_ignore_eos: Annotated[
        bool,
        _about("Requests", "Allow ignore_eos, which benchmarks need and clients should not."),
    ] = False

    pressure_elevated_share: Annotated[
        float,
        _about(
            "Pressure",
            "Share of held KV blocks at which the level ELEVATED is entered; left 0.1 below.",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.75
    pressure_high_share: Annotated[
        float,
        _about(
            "Pressure",
            "Share of held KV blocks at which the level HIGH is entered; left 0.1 below.",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.9

    grace_seconds: Annotated[
        float,
        _about(
            "Life cycle",
            "Time that live requests get to end after SIGTERM.",
            "seconds",
            ge=0.0,
            le=86400.0,
        ),
    ] = 30.0
    endpoint_removal_seconds: Annotated[
        float,
        _about(
            "Life cycle",
            "Least time from SIGTERM to the closed ports, for proxies to forget this server; "
            "5 to 10 on Kubernetes.",
            "seconds",
            ge=0.0,
            le=600.0,
        ),
    ] = 0.0
    engine_start_timeout_seconds: Annotated[
        float,
        _about(
            "Life cycle",
            "Longest silence of a starting engine before it is killed.",
            "seconds",
            gt=0.0,
            le=86400.0,
        ),
    ] = 300.0
    engine_silence_seconds: Annotated[
        float,
        _about(
            "Life cycle",
            "Longest silence of a ready engine, which speaks after every step and once a second "
            "when idle, before it is taken for frozen and replaced.",
            "seconds",
            gt=0.0,
            le=86400.0,
        ),
    ] = 300.0
    restart_delay_seconds: Annotated[
        float,
        _about(
            "Life cycle",
            "Pause before the first restart of a dead engine; doubled by each further one.",
            "seconds",
            ge=0.0,
            le=600.0,
        ),
    ] = 0.1
    restart_delay_max_seconds: Annotated[
        float,
        _about("Life cycle", "Longest pause before a restart.", "seconds", ge=0.0, le=3600.0),
    ] = 10.0
    restart_limit: Annotated[
        int,
        _about(
            "Life cycle",
            "Restarts within restart_window_seconds after which the server gives up; 0: at once.",
            "restarts",
            ge=0,
            le=1000,
        ),
    ] = 5
    restart_window_seconds: Annotated[
        float,
        _about(
            "Life cycle",
            "Time after which a restart counts no more.",
            "seconds",
            gt=0.0,
            le=86400.0,
        ),
    ] = 300.0

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _about("Logging", "Least severe records to write."),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"],
        _about("Logging", "Form of the records; auto is console on a terminal, else json."),
    ] = "auto"

    def __post_init__(self) -> None:
        if self.restart_delay_max_seconds < self.restart_delay_seconds:
            raise ValueError(
                f"restart_delay_max_seconds = {self.restart_delay_max_seconds} is below "
                f"restart_delay_seconds = {self.restart_delay_seconds}"
            )
        if self.pressure_high_share < self.pressure_elevated_share:
            raise ValueError(
                f"pressure_high_share = {self.pressure_high_share} is below "
                f"pressure_elevated_share = {self.pressure_elevated_share}"
            )
        if self.port != 0 and self.port == self.admin_port:
            raise ValueError(f"port and admin_port are both {self.port}; they must differ")
