"""Everything that is true of a request from its admission until its reader is done with it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from service.config import ServeSettings
from service.engine.figures import EngineStats
from service.engine.messages import FinishReason
from service.front.call import GenerationCall, sequence_specs
from service.front.deadlines import Deadlines
from service.front.dispatcher import Dispatcher
from service.front.events import DeadlinePassed, RequestError, SlowReader
from service.front.gate import DeadlineGate
from service.front.outcome import Outcomes
from service.front.registry import Registry
from service.front.request import LiveRequest
from service.front.stall import StallWatch
from service.front.state import ModelInfo

if TYPE_CHECKING:
    from service.tokenizer.tokenizer import Tokenizer


class LiveRequests:
    """Admits requests, wakes their readers, holds them to their limits, and lets them go."""

    def __init__(self, settings: ServeSettings, dispatcher: Dispatcher) -> None:
        self._settings = settings
        self._dispatcher = dispatcher
        self._registry = Registry(
            settings.max_live_requests,
            settings.max_waiting_requests,
            settings.retry_hint_max_seconds,
        )
        self._deadlines = Deadlines(settings)
        self._gate = DeadlineGate(settings, self._deadlines, self._registry.occupancy)
        self._stalls = StallWatch(settings.slow_reader_seconds, self._cut_slow_reader)
        self._next_sequence_id = 1
        self.outcomes = Outcomes()

    def __len__(self) -> int:
        return len(self._registry)

    @property
    def waiting(self) -> int:
        """Live requests that were never in a batch."""
        return self._registry.waiting

    @property
    def unread(self) -> int:
        """Live requests with output that waits for the client."""
        return len(self._stalls)

    @property
    def suggested_retry_seconds(self) -> float:
        """When a client that is refused now should come back."""
        return self._registry.suggested_retry_seconds

    @property
    def empty(self) -> asyncio.Event:
        """Set while no request is live."""
        return self._registry.empty

    def all(self) -> list[LiveRequest]:
        """All live requests, oldest first."""
        return self._registry.all()

    def find(self, tenant: str, request_id: str) -> LiveRequest | None:
        """A live request of the tenant."""
        return self._registry.find(tenant, request_id)

    def admit(
        self, call: GenerationCall, model: ModelInfo, tokenizer: Tokenizer, namespace: bytes
    ) -> LiveRequest:
        """Makes a request live.

        Raises DuplicateRequestId, DeadlineUnreachable, QueueFull, ValueError.
        """
        now_seconds = time.monotonic()
        room_tokens = model.max_context_tokens - len(call.prompt_ids)
        if not call.prompt_ids or room_tokens < 1:
            raise ValueError(
                f"prompt_ids has {len(call.prompt_ids)} tokens, must have 1 to "
                f"{model.max_context_tokens - 1}"
            )
        max_tokens = min(call.max_tokens or room_tokens, room_tokens)
        arrival_seconds = now_seconds if call.arrival_seconds is None else call.arrival_seconds
        end = call.end_of_time(arrival_seconds)
        demand = self._deadlines.demand(call, max_tokens, now_seconds)
        try:
            self._registry.check_id(call.tenant, call.request_id)
            forecast_seconds = self._gate.check(
                call.tenant,
                call.priority,
                demand,
                end.seconds if end.is_deadline else math.inf,
                now_seconds,
            )
            self._make_room(call)
        except RequestError as error:
            self.outcomes.reject(call, error)
            raise
        first_id = self._next_sequence_id
        self._next_sequence_id += call.candidate_count
        sequence_ids = range(first_id, self._next_sequence_id)
        eos_ids = () if call.ignore_eos else model.eos_ids
        request = LiveRequest(
            call,
            sequence_ids,
            tokenizer,
            eos_ids,
            arrival_seconds=arrival_seconds,
            context_bound=call.max_tokens is None or call.max_tokens > room_tokens,
            observer=self.outcomes.observers,
        )
        request.forecast_seconds = forecast_seconds
        specs = sequence_specs(
            call,
            sequence_ids,
            max_tokens=max_tokens,
            expected_tokens=math.ceil(demand.output_tokens),
            eos_ids=eos_ids,
            namespace=namespace,
            arrival_seconds=arrival_seconds,
        )
        self._registry.add(request, demand)
        self.outcomes.observers.admitted(call)
        reach = self._reach_deadline if end.is_deadline else self._reach_time_limit
        if end.seconds <= now_seconds:
            reach(request)  # the engine never hears of it
            return request
        self._dispatcher.add(request, specs)
        if end.seconds < math.inf:
            request.timer = asyncio.get_running_loop().call_later(
                end.seconds - now_seconds, reach, request
            )
        return request

    def progressed(self, requests: Iterable[LiveRequest], now_seconds: float) -> None:
        """The engine side did something to these requests."""
        for request in requests:
            if self._registry.note_progress(request, now_seconds) and request.scheduled:
                self._deadlines.note_start(request, now_seconds)
            if request.error is not None:
                self._release(request)
            self._wake(request, now_seconds)
            if request.unread and request.pending_bytes > self._settings.slow_reader_buffer_bytes:
                self._cut_slow_reader(request)

    def engine_reported(self, stats: EngineStats) -> None:
        """The engine side has new figures, perhaps such that some need not wait any longer."""
        self._deadlines.engine_reported(stats)
        for request, refusal in self._gate.hopeless(time.monotonic()):
            self.cut(request, refusal)

    def settle(self, request: LiveRequest) -> None:
        """The reader took an event or left. Idempotent."""
        self._stalls.remove(request)
        if request.closed or request.end_taken or request.error is not None:
            self._release(request)
        # What came while the reader was busy waits for it from now on.
        self._wake(request, time.monotonic())

    def cut(self, request: LiveRequest, error: RequestError) -> None:
        """Ends a live request with an error."""
        request.fail(error)
        self._release(request)
        self._wake(request, time.monotonic())

    def close(self, error: RequestError) -> None:
        """Ends all requests with an error, for good."""
        for request in self.all():
            self.cut(request, error)
        self._stalls.close()

    def _make_room(self, call: GenerationCall) -> None:
        """Lets another request go where all is full and a tenant has more than its part of it.

        Raises QueueFull when nobody has to give way to this call.
        """
        overflow = self._registry.overflow
        if overflow is None:
            return
        waiting = self._registry.occupancy.waiting
        giving_way = waiting.gives_way(call.tenant, call.priority)
        if giving_way is None:
            raise overflow
        self.cut(giving_way, overflow)

    def _wake(self, request: LiveRequest, now_seconds: float) -> None:
        if request.wake(now_seconds) and request in self._registry:
            self._stalls.add(request, now_seconds)

    def _release(self, request: LiveRequest) -> None:
        if request not in self._registry:
            return
        self._registry.remove(request)
        self._stalls.remove(request)
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None
        self._dispatcher.forget(request)
        self._deadlines.note_end(request, time.monotonic())
        self.outcomes.end(request)

    def _cut_slow_reader(self, request: LiveRequest) -> None:
        self.cut(
            request,
            SlowReader(
                unsent_tokens=request.unsent_tokens,
                limit_seconds=self._settings.slow_reader_seconds,
            ),
        )

    def _reach_deadline(self, request: LiveRequest) -> None:
        request.timer = None
        self.cut(request, DeadlinePassed())

    def _reach_time_limit(self, request: LiveRequest) -> None:
        request.timer = None
        ended = request.finish_open(FinishReason.TIME_LIMIT)
        self._dispatcher.end_sequences(request, ended)
        self.progressed([request], time.monotonic())
