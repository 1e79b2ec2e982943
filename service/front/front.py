"""The front: everything between the API layer and the engine process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from kvcache.namespace import namespace_key
from kvcache.pressure import PressureLevel
from kvcache.stats import FlushResult
from service.config import ServeSettings
from service.engine.messages import Loading, SamplingParams, ShrinkPolicy
from service.faults.plan import FaultPlan
from service.faults.plan_file import read_plan
from service.front.admin_actions import AdminAction
from service.front.call import GenerationCall
from service.front.dispatcher import Dispatcher, EngineState
from service.front.events import AbortedByAdmin, Draining, NotReady, RequestError
from service.front.handle import RequestHandle
from service.front.live_requests import LiveRequests
from service.front.observer import RequestObserver
from service.front.pressure import PressurePolicy
from service.front.request import LiveRequest
from service.front.state import (
    DrainResult,
    EngineFailed,
    FrontState,
    FrontStats,
    MemoryChange,
    MemoryShort,
    ModelInfo,
    describe_model,
)
from service.front.supervisor import ENGINE_COMMAND
from service.front.text import TextService
from service.front.watched import Watched

if TYPE_CHECKING:
    from service.tokenizer.tokenizer import ChatMessage, Tokenizer

_log = structlog.get_logger(__name__)


class Front:
    """Admits requests, keeps them alive over engine deaths, and hands out their events.

    Belongs to one event loop; no method may be called from another thread.
    """

    def __init__(
        self,
        settings: ServeSettings,
        *,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        tokenizer: Tokenizer | None = None,
        on_loading: Callable[[Loading], None] | None = None,
    ) -> None:
        """`tokenizer` None: that of the model. `on_loading` hears of each engine's start."""
        self._settings = settings
        self._tokenizer = tokenizer
        self._default_sampling = SamplingParams()
        self._on_loading = on_loading
        self._text = TextService(settings.tokenizer_threads)
        self._dispatcher = Dispatcher(settings, engine_command, self)
        self._requests = LiveRequests(settings, self._dispatcher)
        self._state = Watched(FrontState.STARTING)
        self._pressure = Watched(PressureLevel.NORMAL)
        self._pressure_policy = PressurePolicy(settings.max_waiting_requests)
        self._model: ModelInfo | None = None
        self._draining = False
        self._stopped = False
        self._resumed = asyncio.Event()
        self._admin_actions: Counter[AdminAction] = Counter()

    def observe(self, observer: RequestObserver) -> None:
        """Tells the observer, beside earlier ones, of all requests from now on."""
        self._requests.outcomes.observers.add(observer)

    def ordered(self, action: AdminAction) -> None:
        """An operator has ordered this: it is only counted."""
        self._admin_actions[action] += 1

    # --- life cycle ---

    async def start(self) -> None:
        """Starts the engine, which goes on loading after this returns, and the tokenizer.

        Raises FaultPlanError, and what reading the model's files raises.
        """
        if self._settings.engine.allow_faults:
            _log.warning("faults are allowed", fault_plan=self._settings.fault_plan)
        if (path := self._settings.fault_plan) is not None:
            self.inject_faults(read_plan(Path(path)))
        self._dispatcher.start()
        if self._tokenizer is None:
            try:
                self._tokenizer, self._default_sampling = await self._text.load(self._settings)
            except BaseException:
                await self.stop()
                raise
        self.engine_state_changed()

    async def wait_ready(self) -> ModelInfo:
        """Waits for the first ready engine. Raises EngineFailed."""
        ending = (FrontState.FAILED, FrontState.STOPPED)
        state = await self._state.wait_for(lambda s: self._model is not None or s in ending)
        if self._model is None:
            raise EngineFailed(self._dispatcher.failure or f"the front is {state.value}")
        return self._model

    async def drain(self, grace_seconds: float | None) -> DrainResult:
        """Refuses new requests and waits for the live ones; ends what is left after the grace.

        None waits without limit. `resume` ends the wait, and then nothing is aborted.
        """
        self._draining = True
        self._resumed.clear()
        self._refresh_state()
        before = set(self._requests.all())
        waits = [
            asyncio.create_task(event.wait()) for event in (self._requests.empty, self._resumed)
        ]
        try:
            await asyncio.wait(waits, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        left = [request for request in self._requests.all() if request in before]
        aborted = left if self._draining else []
        for request in aborted:
            self._requests.cut(request, Draining())
        return DrainResult(completed=len(before) - len(left), aborted=len(aborted))

    def resume(self) -> None:
        """Takes requests again. Without effect when no drain is on."""
        self._draining = False
        self._resumed.set()
        self._refresh_state()

    async def stop(self) -> None:
        """Ends all requests with Draining, stops the engine and reaps it. Idempotent."""
        self._stopped = True
        self._refresh_state()
        self._requests.close(Draining())
        await self._dispatcher.stop()
        self._text.close()

    # --- facts ---

    @property
    def state(self) -> FrontState:
        """What the front is doing now."""
        return self._state.value

    @property
    def model(self) -> ModelInfo | None:
        """The model in service; None until the first engine was ready."""
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        """For cheap look-ups only; text goes through `encode`. Raises NotReady."""
        if self._tokenizer is None:
            raise NotReady
        return self._tokenizer

    @property
    def engine_process_id(self) -> int | None:
        """Of the present engine; None between two."""
        return self._dispatcher.engine_process_id

    @property
    def failure(self) -> str | None:
        """Why the state is FAILED."""
        return self._dispatcher.failure

    def stats(self) -> FrontStats:
        """All gauges and counters at this moment."""
        requests = self._requests
        flight = self._dispatcher.flight.facts
        return FrontStats(
            state=self.state,
            pressure=self._pressure.value,
            engine=self._dispatcher.totals.current(),
            engine_has_spoken=self._dispatcher.totals.has_spoken,
            bytes_per_block=0 if self._model is None else self._model.bytes_per_block,
            max_blocks=0 if self._model is None else self._model.max_blocks,
            live_requests=len(requests),
            waiting_requests=requests.waiting,
            slow_streams=requests.unread,
            suggested_retry_seconds=requests.suggested_retry_seconds,
            completed_requests=requests.outcomes.completed,
            failed_requests=requests.outcomes.failed,
            cancelled_requests=requests.outcomes.cancelled,
            rejected_requests=requests.outcomes.rejected,
            engine_restarts=self._dispatcher.restarts,
            flight_records=flight.records,
            lost_flight_records=flight.lost,
            last_flight_time=flight.last_time,
            last_flight_cause=flight.last_cause,
            last_oom_time=self._dispatcher.flight.last_oom_time,
            faults=self._dispatcher.faults.figures(time.monotonic()),
            admin_actions=self._admin_actions,
        )

    def watch(self) -> AsyncIterator[PressureLevel]:
        """The pressure level now, then each change."""
        return self._pressure.changes()

    def watch_state(self) -> AsyncIterator[FrontState]:
        """The state now, then each change."""
        return self._state.changes()

    # --- text ---

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As `Tokenizer.encode`, off the loop. Raises also NotReady."""
        return await self._text.encode(self.tokenizer, text, add_special_tokens=add_special_tokens)

    async def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[object] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        continue_final_message: bool = False,
    ) -> list[int]:
        """As `Tokenizer.encode_chat`, off the loop. Raises also NotReady."""
        return await self._text.encode_chat(
            self.tokenizer,
            messages,
            tools=tools,
            template_kwargs=template_kwargs,
            continue_final_message=continue_final_message,
        )

    async def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """As `Tokenizer.decode`, off the loop. Raises also NotReady."""
        return await self._text.decode(self.tokenizer, token_ids, skip_special=skip_special)

    # --- requests ---

    async def generate(self, call: GenerationCall) -> RequestHandle:
        """Admits a request.

        Raises Draining, NotReady, DuplicateRequestId, QueueFull, and DeadlineUnreachable when it
        would not be done in time; the handle raises the last two as well when a request has to
        be given up while it waits. While the engine is replaced, requests are admitted and wait.
        Raises ValueError for a prompt that is empty or leaves no room in the context, which the
        API layer refuses with better words.
        """
        refusal = self._refusal()
        if refusal is not None or self._model is None:
            error = refusal or NotReady()
            self._requests.outcomes.reject(call, error)
            raise error
        namespace = self._namespace(call.tenant, call.salt)
        request = self._requests.admit(call, self._model, self.tokenizer, namespace)
        self._refresh_pressure()
        return RequestHandle(request, self._requests.settle)

    def abort(
        self, request_ids: Sequence[str], *, tenant: str, reason: str
    ) -> tuple[list[str], list[str]]:
        """Ends requests of the tenant with AbortedByAdmin; answers (aborted, unknown) ids."""
        aborted: list[str] = []
        unknown: list[str] = []
        for request_id in request_ids:
            request = self._requests.find(tenant, request_id)
            if request is None:
                unknown.append(request_id)
            else:
                self._requests.cut(request, AbortedByAdmin(reason))
                aborted.append(request_id)
        return aborted, unknown

    async def flush(self, *, tenant: str | None = None, salt: str = "") -> FlushResult:
        """Drops the cached blocks of one tenant and salt, or of all; raises NotReady."""
        namespace = None if tenant is None else self._namespace(tenant, salt)
        answer = await self._dispatcher.calls.flush(namespace)
        return FlushResult(answer.dropped_blocks, answer.kept_blocks)

    async def set_memory(
        self, num_blocks: int, *, policy: ShrinkPolicy, limit_seconds: float
    ) -> MemoryChange:
        """Gives the KV pool `num_blocks` usable blocks; answers what is in force.

        That is something else when `limit_seconds` were not enough. Raises NotReady, and
        MemoryShort when the machine has too little memory for a larger pool.
        """
        answer = await self._dispatcher.calls.resize(num_blocks, policy, limit_seconds)
        _log.info("pool resized", wanted_blocks=num_blocks, **msgspec.structs.asdict(answer))
        if (short := answer.shortage) is not None:
            raise MemoryShort(
                short.wanted_bytes, short.available_bytes, short.headroom_bytes, answer.num_blocks
            )
        return MemoryChange(
            answer.before_blocks, answer.num_blocks, answer.preempted, answer.elapsed_seconds
        )

    def inject_faults(self, plan: FaultPlan) -> int:
        """Makes things go wrong, instead of all that was ordered before; no faults end that.

        Answers how many faults were replaced that were not over. Raises FaultsDisabled.
        """
        replaced = self._dispatcher.inject(plan)
        kinds = [type(fault).__name__ for fault in plan.faults]
        _log.warning("faults ordered", faults=kinds, replaced=replaced)
        return replaced

    async def lookup(self, token_ids: list[int], *, tenant: str = "", salt: str = "") -> int:
        """Leading tokens of a prompt that the cache holds now. Raises NotReady."""
        return await self._dispatcher.calls.lookup(self._namespace(tenant, salt), token_ids)

    # --- DispatchObserver ---

    def engine_loading(self, progress: Loading) -> None:
        if self._on_loading is not None:
            self._on_loading(progress)

    def engine_state_changed(self) -> None:
        ready = self._dispatcher.ready
        if ready is not None and self._tokenizer is not None:
            self._model = describe_model(
                self._settings, ready, self._tokenizer, self._default_sampling
            )
        self._refresh_state()
        self._refresh_pressure()

    def requests_progressed(self, requests: Iterable[LiveRequest], now_seconds: float) -> None:
        self._requests.progressed(requests, now_seconds)

    def engine_reported(self) -> None:
        if (stats := self._dispatcher.totals.current()) is not None:
            self._requests.engine_reported(stats)
        self._refresh_pressure()

    # --- inside ---

    def _refusal(self) -> RequestError | None:
        match self._state.value:
            case FrontState.STOPPED | FrontState.DRAINING:
                return Draining()
            case FrontState.STARTING | FrontState.FAILED:
                return NotReady()
            case FrontState.READY | FrontState.RESTARTING:
                return None

    def _refresh_state(self) -> None:
        engine = self._dispatcher.state
        if self._stopped:
            state = FrontState.STOPPED
        elif engine is EngineState.FAILED:
            state = FrontState.FAILED
        elif self._model is None:
            state = FrontState.STARTING
        elif self._draining:
            state = FrontState.DRAINING
        elif engine is EngineState.RESTARTING:
            state = FrontState.RESTARTING
        else:
            state = FrontState.READY
        if state is not self._state.value:
            _log.info("state", state=state.value, before=self._state.value.value)
        self._state.set(state)

    def _refresh_pressure(self) -> None:
        stats = self._dispatcher.totals.current()
        if stats is not None:
            self._pressure.set(self._pressure_policy.level(stats, self._requests.waiting))

    def _namespace(self, tenant: str, salt: str) -> bytes:
        if self._model is None:
            raise NotReady
        return namespace_key(tenant=tenant, salt=salt, fingerprint=self._model.version)
