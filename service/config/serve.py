"""Settings of the front, and all that `plimsoll serve` can be told."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

import msgspec

from service.config.about import MIB, about
from service.config.engine import EngineSettings


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that `plimsoll serve` can be told."""

    engine: EngineSettings = EngineSettings()

    host: Annotated[
        str,
        about("Network", "Address to listen on; 0.0.0.0 or [::] for all.", min_length=1),
    ] = "127.0.0.1"
    port: Annotated[
        int, about("Network", "Port of the inference API; 0 takes a free one.", ge=0, le=65535)
    ] = 9000
    admin_port: Annotated[
        int, about("Network", "Port of the admin API; 0 takes a free one.", ge=0, le=65535)
    ] = 9001
    metrics_port: Annotated[
        int,
        about(
            "Metrics",
            "Port of the metrics, at /metrics over HTTP; 0 takes a free one.",
            ge=0,
            le=65535,
        ),
    ] = 9002
    metrics_host: (
        Annotated[
            str,
            about("Metrics", "Address of metrics_port. Unset: host.", min_length=1),
        ]
        | None
    ) = None
    metrics_tenants: Annotated[
        int,
        about(
            "Metrics",
            "Most tenants with metrics of their own, those of tenant_shares and the one without "
            "a name included; later ones are counted together, as tenant other.",
            "tenants",
            ge=0,
            le=1000,
        ),
    ] = 20
    gpu_sample_seconds: Annotated[
        float,
        about(
            "Metrics",
            "Time from one look at the GPUs, through their driver, to the next; 0: they are not "
            "looked at.",
            "seconds",
            ge=0.0,
            le=60.0,
        ),
    ] = 1.0
    vllm_metrics: Annotated[
        bool,
        about(
            "Metrics",
            "Tell some metrics under their vLLM names as well, for what reads those: the Gateway "
            "API inference extension, dashboards of vLLM.",
        ),
    ] = False
    otlp_endpoint: (
        Annotated[
            str,
            about(
                "Traces",
                "Collector that traces of requests are sent to, by OTLP over gRPC, as "
                "http://HOST:PORT or https://HOST:PORT; unset: there are none.",
                pattern=r"^https?://[^/\s]+:[0-9]+/?$",
            ),
        ]
        | None
    ) = None
    trace_ratio: Annotated[
        float,
        about(
            "Traces",
            "Share of requests to trace among those whose client did not decide. Requests that "
            "fail, are preempted, outlive an engine or run out of memory are always sent.",
            ge=0.0,
            le=1.0,
        ),
    ] = 0.05
    reflection: Annotated[
        bool, about("Network", "Offer gRPC reflection, so that generic clients find the API.")
    ] = True
    max_request_bytes: Annotated[
        int,
        about("Network", "Largest request message.", "bytes", ge=1024, le=1024 * MIB),
    ] = 4 * MIB
    max_streams_per_connection: Annotated[
        int,
        about("Network", "Most concurrent calls of one connection.", "calls", ge=1, le=65536),
    ] = 512
    keepalive_seconds: Annotated[
        float,
        about(
            "Network",
            "Silence on a connection after which the server asks whether the client is alive.",
            "seconds",
            ge=1.0,
            le=7200.0,
        ),
    ] = 20.0
    keepalive_timeout_seconds: Annotated[
        float,
        about(
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
            about(
                "Model",
                "Name that clients use; unset: alias, folder name, or file name without .gguf.",
                min_length=1,
            ),
        ]
        | None
    ) = None
    tokenizer_threads: Annotated[
        int,
        about("Model", "Threads that tokenize prompts.", "threads", ge=1, le=256),
    ] = 2

    max_live_requests: Annotated[
        int,
        about(
            "Requests",
            "Most requests at once, waiting ones included; more are refused with a retry hint.",
            "requests",
            ge=1,
            le=1_000_000,
        ),
    ] = 1024
    max_waiting_requests: Annotated[
        int,
        about(
            "Requests",
            "Most requests that wait for admission; beyond it the newest of the tenant with most "
            "waiting is refused with a retry hint.",
            "requests",
            ge=1,
            le=1_000_000,
        ),
    ] = 256
    retry_hint_max_seconds: Annotated[
        float,
        about(
            "Requests",
            "Longest wait that the retry hint asks of a refused client.",
            "seconds",
            ge=0.1,
            le=3600.0,
        ),
    ] = 30.0
    refuse_unreachable_deadlines: Annotated[
        bool,
        about(
            "Requests",
            "Refuse requests that are forecast to miss the deadline of their call, at once or "
            "while they wait, instead of computing what nobody waits for.",
        ),
    ] = True
    deadline_margin_share: Annotated[
        float,
        about(
            "Requests",
            "Share of the time to its deadline that the forecast of a new request has to leave.",
            ge=0.0,
            le=0.9,
        ),
    ] = 0.05
    tenant_reserve_share: Annotated[
        float,
        about(
            "Requests",
            "Share of the sequences by which a forecast counts more of them for a tenant that has "
            "its share of them already, so that room is left for tenants with less.",
            ge=0.0,
            le=1.0,
        ),
    ] = 0.1
    max_candidates: Annotated[
        int, about("Requests", "Most candidates of one request.", "candidates", ge=1, le=16)
    ] = 16
    max_chat_messages: Annotated[
        int, about("Requests", "Most messages of one conversation.", "messages", ge=1, le=4096)
    ] = 4096
    max_chat_bytes: Annotated[
        int,
        about(
            "Requests",
            "Largest text that the chat template may make of a conversation.",
            "bytes",
            ge=1024,
            le=1024 * MIB,
        ),
    ] = 4 * MIB
    slow_reader_seconds: Annotated[
        float,
        about(
            "Requests",
            "Time that output may wait for its client before the request is cut.",
            "seconds",
            gt=0.0,
            le=86400.0,
        ),
    ] = 30.0
    slow_reader_buffer_bytes: Annotated[
        int,
        about(
            "Requests",
            "Output of one request that may wait for its client before the request is cut.",
            "bytes",
            ge=1024,
            le=1024 * MIB,
        ),
    ] = MIB
    allow_ignore_eos: Annotated[
        bool,
        about("Requests", "Allow ignore_eos, which benchmarks need and clients should not."),
    ] = False

    grace_seconds: Annotated[
        float,
        about(
            "Life cycle",
            "Time that live requests get to end after SIGTERM.",
            "seconds",
            ge=0.0,
            le=86400.0,
        ),
    ] = 30.0
    endpoint_removal_seconds: Annotated[
        float,
        about(
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
        about(
            "Life cycle",
            "Longest silence of a starting engine before it is killed.",
            "seconds",
            gt=0.0,
            le=86400.0,
        ),
    ] = 300.0
    engine_silence_seconds: Annotated[
        float,
        about(
            "Life cycle",
            "Longest time in which a ready engine may compute no layer of a step, waits for a CPU "
            "not counted and waits for a disk or a swap by an eighth, before it is taken for "
            "frozen and replaced.",
            "seconds",
            ge=0.5,
            le=86400.0,
        ),
    ] = 8.0
    restart_delay_seconds: Annotated[
        float,
        about(
            "Life cycle",
            "Pause before the first restart of a dead engine; doubled by each further one.",
            "seconds",
            ge=0.0,
            le=600.0,
        ),
    ] = 0.1
    restart_delay_max_seconds: Annotated[
        float,
        about("Life cycle", "Longest pause before a restart.", "seconds", ge=0.0, le=3600.0),
    ] = 10.0
    restart_limit: Annotated[
        int,
        about(
            "Life cycle",
            "Restarts within restart_window_seconds after which the server gives up, if no engine "
            "has computed a token since; 0: at once.",
            "restarts",
            ge=0,
            le=1000,
        ),
    ] = 5
    restart_window_seconds: Annotated[
        float,
        about(
            "Life cycle",
            "Time after which a restart counts no more.",
            "seconds",
            gt=0.0,
            le=86400.0,
        ),
    ] = 300.0
    restart_patience_seconds: Annotated[
        float,
        about(
            "Life cycle",
            "Time for which a dead engine's successor that cannot start, since others have the "
            "memory or the files that it needs, is tried again while requests wait, before the "
            "server gives up.",
            "seconds",
            ge=0.0,
            le=86400.0,
        ),
    ] = 300.0

    flight_folder: (
        Annotated[
            str,
            about(
                "Flight recorder",
                "Folder of the records of what went wrong; it is made for this user alone. "
                "Unset: plimsoll/flight below XDG_STATE_HOME, or below ~/.local/state.",
                min_length=1,
            ),
        ]
        | None
    ) = None
    flight_records: Annotated[
        int,
        about(
            "Flight recorder",
            "Most records in flight_folder; beyond it the oldest of the commonest kind goes. "
            "0: nothing is recorded.",
            "records",
            ge=0,
            le=10_000,
        ),
    ] = 32
    termination_log: Annotated[
        str,
        about(
            "Flight recorder",
            "File that takes the cause when the server gives up. It is written only if it is "
            "there, as this one is in every container of Kubernetes.",
            min_length=1,
        ),
    ] = "/dev/termination-log"

    fault_plan: (
        Annotated[
            str,
            about(
                "Faults",
                "File of faults, TOML or JSON, that begin when the first engine is ready; only "
                "with allow_faults. Unset: none.",
                min_length=1,
            ),
        ]
        | None
    ) = None

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about("Logging", "Least severe records to write."),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"],
        about("Logging", "Form of the records; auto is console on a terminal, else json."),
    ] = "auto"
    log_repeats: Annotated[
        int,
        about(
            "Logging",
            "Most records of one event in a minute; the next one tells how many were left out. "
            "Ends of requests and errors with new facts are always written. 0: no limit.",
            "records",
            ge=0,
            le=1_000_000,
        ),
    ] = 60

    def __post_init__(self) -> None:
        if self.fault_plan is not None and not self.engine.allow_faults:
            raise ValueError(
                f"fault_plan = {self.fault_plan!r} would make things go wrong on purpose, which "
                "allow_faults = false does not permit"
            )
        if self.restart_delay_max_seconds < self.restart_delay_seconds:
            raise ValueError(
                f"restart_delay_max_seconds = {self.restart_delay_max_seconds} is below "
                f"restart_delay_seconds = {self.restart_delay_seconds}"
            )
        names = ("port", "admin_port", "metrics_port")
        for one, other in itertools.combinations(names, 2):
            port = getattr(self, one)
            if port != 0 and port == getattr(self, other):
                raise ValueError(f"{one} and {other} are both {port}; they must differ")
