"""A front without an engine, and a client, for tests of the gRPC layer.

`FakeFront.script` decides what a request does: the events it hands out, the error it ends
with, the gates at which it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from kvcache import FlushResult
from kvcache.pressure import PressureLevel
from service.api.gen.plimsoll.v1.engine_admin_pb2_grpc import EngineAdminServiceStub
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.ports import Ports, open_ports
from service.config import ServeSettings
from service.engine.figures import EngineStats
from service.engine.messages import FinishReason, SamplingParams, ShrinkPolicy
from service.front.admin_actions import AdminAction
from service.front.call import GenerationCall
from service.front.events import Delta, Ended, Event, Progress, Started, Timings, Usage
from service.front.observer import RequestObserver
from service.front.state import DrainResult, FrontState, FrontStats, MemoryChange, ModelInfo
from service.front.watched import Watched
from service.tokenizer.tokenizer import ChatMessage

VOCAB_SIZE = 300
EOS_ID = 256
CONTEXT_TOKENS = 100

MODEL = ModelInfo(
    name="fake",
    version="abc123",
    vocab_size=VOCAB_SIZE,
    max_context_tokens=CONTEXT_TOKENS,
    eos_ids=(EOS_ID,),
    has_chat_template=True,
    block_tokens=16,
    num_blocks=40,
    max_blocks=100,
    bytes_per_block=1024,
    weights_dtype="float32",
    kv_dtype="float32",
    device="cpu",
    attention_backend="fake",
    load_seconds=0.0,
    default_sampling=SamplingParams(temperature=0.75, top_k=40),
)

ENGINE_STATS = EngineStats(
    running=1,
    waiting=0,
    preempted=2,
    blocks_total=40,
    blocks_free=20,
    blocks_cached=10,
    blocks_held=10,
    blocks_reserved=3,
    blocks_shared=1,
    steps=7,
    prefill_tokens=70,
    decode_tokens=17,
    lookup_tokens=100,
    hit_tokens=30,
    evicted_blocks=4,
    preemptions=5,
    step_seconds=0.02,
    last_step_seconds=1.0,
    slack_tokens=9,
    regretted_tokens=6,
    misses=(5, 4, 3, 2, 1),
    preemption_counts=(1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 1),
    tenant_blocks={"interactive": 8, "": 2},
)

USAGE = Usage(prompt_tokens=5, completion_tokens=3, cached_prompt_tokens=2, recomputed_tokens=1)
TIMINGS = Timings(
    queue_seconds=0.25,
    prefill_seconds=0.5,
    time_to_first_token_seconds=0.75,
    decode_seconds=1.5,
    preempted_seconds=0.125,
    blocked_on_client_seconds=0.0625,
    preemption_count=2,
)
STARTED = Started(prompt_tokens=5, cached_prompt_tokens=2, seed=9, effective_priority=0)
ENDED = Ended(USAGE, TIMINGS)

Step = Event | Exception | Callable[[], Awaitable[object]]


def words(*texts: str, index: int = 0) -> list[Step]:
    """A whole request of one candidate."""
    deltas: list[Step] = [Progress([Delta(index, text, list(text.encode()))]) for text in texts]
    last = Delta(index, "", [EOS_ID], finish_reason=FinishReason.EOS, stop_token_id=EOS_ID)
    return [STARTED, *deltas, Progress([last]), ENDED]


class FakeTokenizer:
    """One token per byte; ids from 256 on are special."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else f"<{token_id}>".encode()

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256


@dataclass(eq=False)
class FakeHandle:
    """Plays its script; counts `close`."""

    request_id: str
    script: Iterator[Step]
    closed: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def __aiter__(self) -> FakeHandle:
        return self

    async def __anext__(self) -> Event:
        for step in self.script:
            if isinstance(step, Exception):
                raise step
            if callable(step):
                await step()
                continue
            return step
        raise StopAsyncIteration

    def close(self) -> None:
        self.closed += 1
        self.done.set()


async def forever() -> None:
    """A step of a script that never ends."""
    await asyncio.Event().wait()


class FakeFront:
    """Has the methods of `service.front.front.Front` that the API layer uses."""

    def __init__(self, settings: ServeSettings | None = None) -> None:
        self.settings = settings or ServeSettings()
        self.script: Callable[[GenerationCall], Sequence[Step] | Iterator[Step]] = lambda _: words(
            "hi", " there"
        )
        self.calls: list[GenerationCall] = []
        self.handles: list[FakeHandle] = []
        self.refusal: Exception | None = None
        self.model: ModelInfo | None = MODEL
        self.tokenizer = FakeTokenizer()
        self.failure = "told to fail"
        self.log: list[str] = []
        self.orders: list[AdminAction] = []
        self.engine: EngineStats | None = ENGINE_STATS
        self.engine_process_id: int | None = None
        self.pressure = Watched(PressureLevel.NORMAL)
        self.states = Watched(FrontState.READY)
        self.drain_gate = asyncio.Event()
        self.drain_gate.set()
        self.encode_error: Exception | None = None
        self.memory_error: Exception | None = None

    @property
    def state(self) -> FrontState:
        return self.states.value

    def observe(self, observer: RequestObserver) -> None:
        self.observer = observer

    def ordered(self, action: AdminAction) -> None:
        self.orders.append(action)

    async def start(self) -> None:
        self.log.append("start")

    async def stop(self) -> None:
        self.log.append("stop")
        self.states.set(FrontState.STOPPED)

    async def drain(self, grace_seconds: float | None) -> DrainResult:
        self.log.append(f"drain {grace_seconds}")
        self.states.set(FrontState.DRAINING)
        if grace_seconds != 0:
            await self.drain_gate.wait()
        self.log.append("drained")
        return DrainResult(completed=3, aborted=1)

    def resume(self) -> None:
        self.log.append("resume")
        self.states.set(FrontState.READY)

    async def set_memory(
        self, num_blocks: int, *, policy: ShrinkPolicy, limit_seconds: float
    ) -> MemoryChange:
        self.log.append(f"memory {num_blocks} {policy.name} {limit_seconds:g}")
        if self.memory_error is not None:
            raise self.memory_error
        return MemoryChange(40, num_blocks, preempted=2, elapsed_seconds=0.5)

    def watch(self) -> AsyncIterator[PressureLevel]:
        return self.pressure.changes()

    def watch_state(self) -> AsyncIterator[FrontState]:
        return self.states.changes()

    def stats(self) -> FrontStats:
        return FrontStats(
            state=self.state,
            pressure=self.pressure.value,
            engine=self.engine,
            engine_has_spoken=self.engine is not None,
            bytes_per_block=1024,
            max_blocks=100,
            live_requests=8,
            waiting_requests=3,
            slow_streams=1,
            suggested_retry_seconds=0.5,
            completed_requests=20,
            failed_requests=1,
            cancelled_requests=2,
            rejected_requests=6,
            engine_restarts=1,
        )

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if self.encode_error:
            raise self.encode_error
        return [*([299] if add_special_tokens and text else []), *text.encode()]

    async def encode_chat(self, messages: Sequence[ChatMessage], **options: object) -> list[int]:
        if self.encode_error:
            raise self.encode_error
        self.chat = (messages, options)
        return [len(messages), *"".join(message.content for message in messages).encode()]

    async def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        kept = [i for i in token_ids if not (skip_special and i >= 256)]
        return b"".join(map(self.tokenizer.token_bytes, kept)).decode(errors="replace")

    async def generate(self, call: GenerationCall) -> FakeHandle:
        if self.refusal:
            raise self.refusal
        self.calls.append(call)
        handle = FakeHandle(call.request_id, iter(self.script(call)))
        self.handles.append(handle)
        return handle

    def abort(
        self, request_ids: Sequence[str], *, tenant: str, reason: str
    ) -> tuple[list[str], list[str]]:
        self.log.append(f"abort {tenant} {reason}")
        return [i for i in request_ids if i.startswith("a")], [
            i for i in request_ids if not i.startswith("a")
        ]

    async def flush(self, *, tenant: str | None = None, salt: str = "") -> FlushResult:
        self.log.append(f"flush {tenant!r} {salt!r}")
        return FlushResult(dropped_blocks=11, kept_blocks=4)

    async def lookup(self, token_ids: list[int], *, tenant: str = "", salt: str = "") -> int:
        self.log.append(f"lookup {tenant!r} {salt!r}")
        return len(token_ids) // 2


@dataclass
class ApiServer:
    """A running server over a FakeFront, and channels to it."""

    front: FakeFront
    ports: Ports
    channel: grpc.aio.Channel
    admin_channel: grpc.aio.Channel

    @property
    def stub(self) -> InferenceServiceStub:
        return InferenceServiceStub(self.channel)

    @property
    def admin(self) -> EngineAdminServiceStub:
        return EngineAdminServiceStub(self.admin_channel)

    async def raw(
        self, method: str, body: bytes, metadata: Sequence[tuple[str, str]] = ()
    ) -> bytes:
        """Sends bytes as they are to a unary method of InferenceService."""
        call = self.channel.unary_unary(f"/plimsoll.v1.InferenceService/{method}")
        return await call(body, metadata=metadata)


@contextlib.asynccontextmanager
async def api_server(front: FakeFront, **settings: object) -> AsyncIterator[ApiServer]:
    """Both ports on loopback."""
    serve_settings = ServeSettings(port=0, admin_port=0, **settings)  # type: ignore[arg-type]
    ports = open_ports(front, serve_settings, served_by="here")  # type: ignore[arg-type]
    await ports.inference.start()
    await ports.admin.start()
    try:
        async with (
            grpc.aio.insecure_channel(ports.inference_address) as channel,
            grpc.aio.insecure_channel(ports.admin_address) as admin_channel,
        ):
            yield ApiServer(front, ports, channel, admin_channel)
    finally:
        await ports.inference.stop(0)
        await ports.admin.stop(0)


@dataclass
class Refusal:
    """What a client learns from a failed call."""

    code: grpc.StatusCode
    message: str
    info: error_details_pb2.ErrorInfo | None
    fields: dict[str, str]
    retry: error_details_pb2.RetryInfo | None
    request_info: error_details_pb2.RequestInfo | None
    trailers: dict[str, str | bytes]

    @property
    def reason(self) -> str | None:
        return self.info.reason if self.info else None


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """Unpacks the details of a failed call."""
    trailers = dict(error.trailing_metadata() or ())
    details = {}
    if "grpc-status-details-bin" in trailers:
        status = rpc_status.from_call(_AsCall(error))
        for packed in status.details:
            for kind in ("ErrorInfo", "BadRequest", "RetryInfo", "RequestInfo"):
                message = getattr(error_details_pb2, kind)()
                if packed.Unpack(message):
                    details[kind] = message
    violations = details["BadRequest"].field_violations if "BadRequest" in details else ()
    return Refusal(
        error.code(),
        error.details() or "",
        details.get("ErrorInfo"),
        {violation.field: violation.description for violation in violations},
        details.get("RetryInfo"),
        details.get("RequestInfo"),
        trailers,
    )


async def refused(call: Awaitable[object]) -> Refusal:
    """Awaits a call that must fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    raise AssertionError("the call was answered")


class _AsCall:
    """AioRpcError in the shape that grpc_status wants."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code = error.code
        self.details = error.details
        self.trailing_metadata = lambda: tuple(error.trailing_metadata() or ())
