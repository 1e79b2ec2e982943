"""Brings live requests to the engine, whichever engine that is, and its words back."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
import structlog

from service.config import ServeSettings
from service.engine.figures import Incident
from service.engine.messages import (
    Abort,
    Exhausted,
    Failed,
    FaultFired,
    Flushed,
    FromEngine,
    Heartbeat,
    IncidentReport,
    Loading,
    LookedUp,
    Predecessor,
    Ready,
    Refused,
    Resized,
    SequenceSpec,
    StepReport,
    Submit,
)
from service.faults.plan import FaultPlan
from service.front.engine_calls import EngineCalls
from service.front.engine_death import EngineDeath
from service.front.engine_totals import EngineTotals
from service.front.events import (
    DeviceExhausted,
    EngineCrashedByRequest,
    EngineLost,
    ExceedsCapacity,
    ModelFailed,
)
from service.front.faults import FaultBook
from service.front.flight import FlightRecorder
from service.front.journal import Journal
from service.front.quarantine import Conviction, Quarantine
from service.front.request import LiveRequest
from service.front.restart import EngineLife
from service.front.supervisor import Supervisor

# To a client whose request found no memory: for as long the engine is careful afterwards.
_EXHAUSTED_RETRY_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class EngineState(enum.Enum):
    """Of the engine as the front sees it."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


class DispatchObserver(Protocol):
    """Who hears of what the engine did."""

    def engine_loading(self, progress: Loading) -> None:
        """The engine is starting."""

    def engine_state_changed(self) -> None:
        """`Dispatcher.state` has a new value."""

    def requests_progressed(self, requests: Iterable[LiveRequest], now_seconds: float) -> None:
        """These requests have something new for their readers, or are over."""

    def engine_reported(self) -> None:
        """`Dispatcher.totals` has new numbers."""


class Dispatcher:
    """Keeps the journal and sends each open sequence once to each engine.

    A request waits while there is no engine, while the engine does not read, or while the
    quarantine keeps it back; it can be cancelled then without the engine hearing of it.
    """

    def __init__(
        self, settings: ServeSettings, command: Sequence[str], observer: DispatchObserver
    ) -> None:
        self._observer = observer
        self._supervisor = Supervisor(settings, self, command)
        self.calls = EngineCalls(self._supervisor)  # beside the requests
        self._journal = Journal()
        self._requests: dict[LiveRequest, None] = {}  # not over, in order of arrival
        self._quarantine: Quarantine[LiveRequest] = Quarantine()  # of the same requests
        self._in_engine: dict[int, LiveRequest] = {}  # by sequence
        self.flight = FlightRecorder(settings, self._requests, self._in_engine)
        self.state = EngineState.STARTING
        self.failure: str | None = None
        self.ready: Ready | None = None  # of the newest engine that was ready
        self.totals = EngineTotals()
        self.faults = FaultBook(allowed=settings.engine.allow_faults)

    @property
    def restarts(self) -> int:
        """Engines that died and were replaced."""
        return self._supervisor.restarts

    @property
    def engine_process_id(self) -> int | None:
        """Of the present engine."""
        return self._supervisor.process_id

    def start(self) -> None:
        """Begins to start the engine."""
        self.flight.start()
        self._supervisor.start()

    async def stop(self) -> None:
        """Stops the engine and reaps it."""
        await self._supervisor.stop()
        self.calls.fail()
        await self.flight.close()

    # --- what the front asks for ---

    def add(self, request: LiveRequest, specs: Sequence[SequenceSpec]) -> None:
        """Takes charge of a request until it is over or forgotten."""
        for spec in specs:
            self._journal.open(spec)
        self._requests[request] = None
        self._quarantine.add(request)
        self._submit_waiting()

    def end_sequences(self, request: LiveRequest, sequence_ids: Sequence[int]) -> None:
        """The front ended these candidates; the engine frees their blocks within a step.

        The request is over when the engine has told its figures of them.
        """
        running = self._abort(sequence_ids)
        request.settle([i for i in sequence_ids if i not in running])
        if request.over:
            self._release(request)

    def forget(self, request: LiveRequest) -> None:
        """Nobody wants anything of this request any more. Idempotent."""
        self._release(request)
        sequence_ids = [candidate.sequence_id for candidate in request.candidates]
        self._abort(sequence_ids)
        for sequence_id in sequence_ids:
            self._in_engine.pop(sequence_id, None)

    def inject(self, plan: FaultPlan) -> int:
        """As `FaultBook.replace`, and tells a ready engine."""
        now_seconds = time.monotonic()
        replaced = self.faults.replace(plan, now_seconds)
        if self.state is EngineState.READY:
            self._supervisor.send(self.faults.inject(now_seconds))
        return replaced

    # --- EngineListener ---

    def engine_loading(self, progress: Loading) -> None:
        self._observer.engine_loading(progress)

    def engine_ready(self, ready: Ready) -> None:
        if self.ready is not None and self.ready.model_version != ready.model_version:
            # Going on would join the words of two models, with the tokenizer of the first.
            self.engine_failed(
                f"the files of the model were replaced while it was served: version "
                f"{ready.model_version} was {self.ready.model_version}"
            )
            return
        self.ready = ready
        self.flight.engine_ready(ready, self.engine_process_id)
        if self._supervisor.predecessor is None:
            self._supervisor.predecessor = Predecessor(
                ready.num_blocks, ready.max_blocks, ready.max_context_tokens
            )
        if (order := self.faults.inject(time.monotonic())).faults:
            self._supervisor.send(order)
        self._set_state(EngineState.READY)
        self._submit_waiting()

    def engine_writable(self) -> None:
        self._submit_waiting()

    def engine_died(self, death: EngineDeath) -> EngineLife:
        self.flight.engine_died(death)
        self._drop_engine()
        inquest = self._quarantine.died(crashed=death.crashed)
        _log.warning(
            "engine death examined",
            crashed=death.crashed,
            in_flight=inquest.in_flight,
            suspects=inquest.suspects,
            life=inquest.life.value,
        )
        if inquest.conviction is not None:
            self._fail_convicted(inquest.conviction)
        return inquest.life

    def engine_restarting(self) -> None:
        self.flight.engine_restarting()
        if self.state is EngineState.READY:
            self._set_state(EngineState.RESTARTING)

    def engine_failed(self, cause: str) -> None:
        self.flight.gave_up(cause)
        self._fail_all()
        self.failure = cause
        self._set_state(EngineState.FAILED)

    def engine_message(self, message: FromEngine) -> None:
        match message:
            case StepReport() | Heartbeat():
                if isinstance(message, StepReport):
                    self._step(message)
                self.totals.update(message.stats)
                self.flight.reported(message.stats)
                self._observer.engine_reported()
            case FaultFired(fault_id):
                self.faults.fired(fault_id)
            case Flushed() | LookedUp() | Resized():
                if isinstance(message, Resized):
                    self._note_size(message)
                self.calls.answered(message)
            case IncidentReport(incident):
                if incident.vitals is not None:
                    self.totals.looked(incident.vitals)
                self.flight.incident(incident)
                self._tell_of(incident)
            case _:
                raise AssertionError(f"not a message of a ready engine: {message!r}")

    # --- inside ---

    def _note_size(self, resized: Resized) -> None:
        """What was ordered holds for later engines, too."""
        predecessor = self._supervisor.predecessor
        assert predecessor is not None, "only a ready engine changes its pool"
        self._supervisor.predecessor = msgspec.structs.replace(
            predecessor, blocks=resized.ceiling_blocks
        )

    def _submit_waiting(self) -> None:
        while self._supervisor.writable:
            request = self._quarantine.next_entrant()
            if request is None:
                return
            sequence_ids = request.open_sequences
            self._quarantine.enter(request, sequence_ids)
            self._in_engine.update(dict.fromkeys(sequence_ids, request))
            specs = [self._journal.submission(i) for i in sequence_ids]
            self._supervisor.send(Submit(specs))
            for spec in specs:
                if spec.resumed:
                    request.resubmitted(spec.sequence_id)

    def _release(self, request: LiveRequest) -> None:
        """It is over, or about to be."""
        self._requests.pop(request, None)
        self._quarantine.remove(request)

    def _abort(self, sequence_ids: Iterable[int]) -> set[int]:
        """Closes the record of the sequences; answers those that the engine has to end."""
        for sequence_id in sequence_ids:
            self._journal.close(sequence_id)
        running = self._in_engine.keys() & set(sequence_ids)
        if running:
            self._supervisor.send(Abort(sorted(running)))
        return running

    def _step(self, report: StepReport) -> None:
        now_seconds = time.monotonic()
        self._quarantine.stepped()
        touched: dict[LiveRequest, None] = {}
        matched: list[int] = []
        for started in report.started:
            request = self._in_engine.get(started.sequence_id)
            if request is not None:
                known_tokens = self._journal.started(started.sequence_id)
                if known_tokens:
                    request.resumed(started.sequence_id, known_tokens, started.cached_tokens)
                request.started(started)
                touched[request] = None
        for move in report.moves:  # in one engine, none of them comes before the start
            request = self._in_engine.get(move.sequence_id)
            if request is not None:
                request.moved(move)
        for chunk in report.prefilled:
            request = self._in_engine.get(chunk.sequence_id)
            if request is not None:
                request.prefilled(chunk)
        for output in report.outputs:
            request = self._in_engine.get(output.sequence_id)
            if request is not None:
                self._quarantine.progressed(output.sequence_id)
                self._journal.record(output.sequence_id, output.token_ids)
                if request.output(output, now_seconds):
                    matched.append(output.sequence_id)
                touched[request] = None
        for finished in report.finished:
            request = self._in_engine.pop(finished.sequence_id, None)
            if request is not None:
                self._quarantine.progressed(finished.sequence_id)
                self._journal.close(finished.sequence_id)
                request.finished(finished)
                touched[request] = None
        for refused in report.refused:
            request = self._in_engine.pop(refused.sequence_id, None)
            if request is not None:
                self._refuse(request, refused)
                touched[request] = None
        for failed in report.failed:
            request = self._in_engine.pop(failed.sequence_id, None)
            if request is not None:
                self._fail(request, failed)
                touched[request] = None
        for exhausted in report.exhausted:
            request = self._in_engine.pop(exhausted.sequence_id, None)
            if request is not None:
                self._exhaust(request, exhausted)
                touched[request] = None
        self._abort(matched)
        for request in touched:
            if request.over:
                self._release(request)
        self._observer.requests_progressed(touched, now_seconds)
        self._submit_waiting()  # whom the quarantine kept back until now

    def _tell_of(self, incident: Incident) -> None:
        """A step without memory is something that happened to all requests in it."""
        if incident.is_fatal:
            return
        touched = {self._in_engine.get(i): None for i in incident.sequence_ids}
        for request in touched:
            if request is not None:
                request.ran_out_of_memory(incident)

    def _had_ended(self, request: LiveRequest, sequence_id: int) -> bool:
        """A candidate may end well while a step is under way that ends badly."""
        if sequence_id in request.open_sequences:
            return False
        self._journal.close(sequence_id)
        request.settle([sequence_id])
        return True

    def _refuse(self, request: LiveRequest, refused: Refused) -> None:
        if self._had_ended(request, refused.sequence_id):
            return
        request.fail(
            ExceedsCapacity(
                prompt_tokens=request.account.prompt_tokens,
                needed_blocks=refused.needed_blocks,
                total_blocks=refused.total_blocks,
                limit_tokens=refused.limit_tokens,
            )
        )
        self.forget(request)

    def _fail(self, request: LiveRequest, failed: Failed) -> None:
        if self._had_ended(request, failed.sequence_id):
            return
        request_id, tenant = request.call.request_id, request.call.tenant
        _log.error("model failed", request_id=request_id, tenant=tenant, cause=failed.cause)
        request.fail(ModelFailed())
        self.forget(request)

    def _exhaust(self, request: LiveRequest, exhausted: Exhausted) -> None:
        if self._had_ended(request, exhausted.sequence_id):
            return
        request.fail(
            DeviceExhausted(
                wanted_bytes=exhausted.wanted_bytes,
                free_bytes=exhausted.free_bytes,
                total_bytes=exhausted.total_bytes,
                tokens_sent=request.sent_tokens,
                retry_after_seconds=_EXHAUSTED_RETRY_SECONDS,
            )
        )
        self.forget(request)

    def _fail_convicted(self, conviction: Conviction[LiveRequest]) -> None:
        request = conviction.request
        self.flight.convicted(request, conviction.deaths)
        _log.error(
            "request kills engines",
            request_id=request.call.request_id,
            tenant=request.call.tenant,
            engine_deaths=conviction.deaths,
            prompt_tokens=request.account.prompt_tokens,
            output_tokens=request.output_tokens,
        )
        request.fail(
            EngineCrashedByRequest(engine_deaths=conviction.deaths, tokens_sent=request.sent_tokens)
        )
        self.forget(request)
        self._observer.requests_progressed([request], time.monotonic())

    def _drop_engine(self) -> None:
        """The engine is gone with what it had left to say."""
        self.calls.fail()
        self.totals.engine_lost()
        for sequence_id, request in self._in_engine.items():
            if self._journal.was_started(sequence_id):
                request.interrupted(sequence_id)
        self._in_engine.clear()
        settled: list[LiveRequest] = []
        for request in list(self._requests):
            request.settle_finished()
            if request.over:
                self._release(request)
                settled.append(request)
        self._observer.requests_progressed(settled, time.monotonic())

    def _fail_all(self) -> None:
        requests = list(self._requests)
        for request in requests:
            request.fail(EngineLost(tokens_sent=request.sent_tokens))
            self.forget(request)
        self._observer.requests_progressed(requests, time.monotonic())

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._observer.engine_state_changed()
