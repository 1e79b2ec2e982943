"""What the front is doing, and the model that it serves."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from kvcache.pressure import PressureLevel
from service.config import ServeSettings
from service.engine.figures import EngineStats
from service.engine.messages import Ready, SamplingParams
from service.front.admin_actions import AdminAction
from service.front.faults import FaultFigures
from service.models.source import model_name

if TYPE_CHECKING:
    from service.tokenizer.tokenizer import Tokenizer


class FrontState(enum.Enum):
    """Health reads this; only READY takes new requests without a wait."""

    STARTING = "starting"  # no engine has been ready yet
    READY = "ready"
    RESTARTING = "restarting"  # the engine died; requests wait for the next one
    DRAINING = "draining"  # live requests end, new ones are refused
    FAILED = "failed"  # the engine cannot be started, or dies again and again
    STOPPED = "stopped"


class EngineFailed(Exception):
    """The engine cannot serve: it refused its settings, died too often, or cannot start again."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts of the loaded model, its tokenizer and the pool behind it."""

    name: str
    version: str  # digest of weights and configuration
    vocab_size: int
    max_context_tokens: int
    eos_ids: tuple[int, ...]
    has_chat_template: bool
    block_tokens: int
    num_blocks: int  # usable ones, at the start of the engine
    max_blocks: int  # usable ones, as far as the pool can grow
    bytes_per_block: int
    weights_dtype: str
    kv_dtype: str
    device: str
    attention_backend: str
    load_seconds: float
    default_sampling: SamplingParams  # of requests that do not choose


def served_name(settings: ServeSettings) -> str:
    """The name that clients use for the model."""
    return settings.served_model_name or model_name(settings.engine.model)


def describe_model(
    settings: ServeSettings, ready: Ready, tokenizer: Tokenizer, default_sampling: SamplingParams
) -> ModelInfo:
    """What a ready engine, the tokenizer and the model's files tell about the model."""
    return ModelInfo(
        name=served_name(settings),
        version=ready.model_version,
        vocab_size=ready.vocab_size,
        max_context_tokens=ready.max_context_tokens,
        eos_ids=tokenizer.eos_ids,
        has_chat_template=tokenizer.has_chat_template,
        block_tokens=ready.block_tokens,
        num_blocks=ready.num_blocks,
        max_blocks=ready.max_blocks,
        bytes_per_block=ready.bytes_per_block,
        weights_dtype=ready.weights_dtype,
        kv_dtype=ready.kv_dtype,
        device=ready.device,
        attention_backend=ready.attention_backend,
        load_seconds=ready.load_seconds,
        default_sampling=default_sampling,
    )


@dataclass(frozen=True, slots=True)
class FrontStats:
    """Gauges now and counters since the start of the front.

    `engine` is None until the first engine has spoken; its counters go on over restarts. Between
    two engines its gauges say that nothing is in use, which nobody has measured.
    """

    state: FrontState
    pressure: PressureLevel
    engine: EngineStats | None
    engine_has_spoken: bool  # the present engine, of its numbers
    bytes_per_block: int
    max_blocks: int  # that the pool can grow to
    live_requests: int
    waiting_requests: int  # of the live ones, not yet scheduled for the first time
    slow_streams: int  # requests whose output waits for the client
    suggested_retry_seconds: float
    completed_requests: int
    failed_requests: int
    cancelled_requests: int
    rejected_requests: int
    engine_restarts: int
    flight_records: int = 0  # on disk, those of earlier servers included
    lost_flight_records: int = 0  # since the start of the front: not written, or not in time
    last_flight_time: datetime | None = None  # of the newest record, UTC; None: there is none
    last_flight_cause: str | None = None
    last_oom_time: datetime | None = None  # UTC, as far back as flight records reach
    faults: FaultFigures | None = None  # None: none are allowed
    admin_actions: Mapping[AdminAction, int] = field(default_factory=dict)  # without those at 0


class MemoryShort(Exception):
    """The pool cannot grow as far as was asked: too little memory is left."""

    def __init__(
        self, wanted_bytes: int, available_bytes: int, headroom_bytes: int, total_blocks: int
    ) -> None:
        super().__init__(f"{wanted_bytes} bytes wanted, {available_bytes} available")
        self.wanted_bytes = wanted_bytes
        self.available_bytes = available_bytes
        self.headroom_bytes = headroom_bytes  # of what is available, left to the model's steps
        self.total_blocks = total_blocks  # of the pool that is in force


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """What became of the pool. Blocks are usable ones."""

    before_blocks: int
    num_blocks: int  # in force
    preempted: int  # candidates that lost their blocks for it
    elapsed_seconds: float


@dataclass(frozen=True, slots=True)
class DrainResult:
    """How the requests ended that were live when the drain began."""

    completed: int
    aborted: int
