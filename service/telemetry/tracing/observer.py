"""Makes a trace of each request that has a context for one."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.engine.figures import Incident
from service.engine.messages import Preempted, Prefilled, Readmitted
from service.front.call import GenerationCall
from service.front.events import RequestError
from service.front.observer import Ending, RequestObserver
from service.telemetry.tracing import attributes as names
from service.telemetry.tracing.keep import is_kept
from service.telemetry.tracing.records import Attributes, SpanTree
from service.telemetry.tracing.request_trace import RequestTrace


class RequestTraces(RequestObserver):
    """Everything is told with its request, so nothing of one gets into the trace of another."""

    def __init__(
        self,
        model: str,
        send: Callable[[SpanTree], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` takes the trees that are kept, and must not block."""
        self._model = model
        self._send = send
        self._clock = clock
        self._live: dict[str, RequestTrace] = {}  # by span id; as many as requests are live

    def refused(self, call: GenerationCall, error: RequestError) -> None:
        trace = self._begin(call)
        if trace is not None:
            self._finish(trace.end(self._clock(), _error_attributes(error), _words(error)))

    def admitted(self, call: GenerationCall) -> None:
        trace = self._begin(call)
        if trace is not None and call.trace is not None:
            self._live[call.trace.span_id] = trace

    def scheduled(self, call: GenerationCall, queue_seconds: float) -> None:
        if (trace := self._of(call)) is not None:
            trace.scheduled(trace.began_seconds + queue_seconds)

    def first_token(
        self, call: GenerationCall, since_arrival_seconds: float, since_batch_seconds: float
    ) -> None:
        if (trace := self._of(call)) is not None:
            trace.first_token(trace.began_seconds + since_arrival_seconds)

    def prefilled(self, call: GenerationCall, candidate: int, chunk: Prefilled) -> None:
        if (trace := self._of(call)) is not None:
            trace.prefilled(candidate, chunk)

    def preempted(self, call: GenerationCall, candidate: int, loss: Preempted) -> None:
        if (trace := self._of(call)) is not None:
            trace.preempted(candidate, loss)

    def readmitted(self, call: GenerationCall, candidate: int, entry: Readmitted) -> None:
        if (trace := self._of(call)) is not None:
            trace.readmitted(candidate, entry)

    def ran_out_of_memory(self, call: GenerationCall, incident: Incident) -> None:
        if (trace := self._of(call)) is not None:
            trace.ran_out_of_memory(self._clock(), incident)

    def interrupted(self, call: GenerationCall, candidate: int) -> None:
        if (trace := self._of(call)) is not None:
            trace.interrupted(candidate, self._clock())

    def resubmitted(self, call: GenerationCall, candidate: int) -> None:
        if (trace := self._of(call)) is not None:
            trace.resubmitted(candidate, self._clock())

    def resumed(self, call: GenerationCall, candidate: int) -> None:
        if (trace := self._of(call)) is not None:
            trace.resumed(candidate, self._clock())

    def ended(self, call: GenerationCall, ending: Ending) -> None:
        if (trace := self._of(call)) is None or call.trace is None:
            return
        del self._live[call.trace.span_id]
        error = ending.error
        attributes = _ending_attributes(ending)
        if error is not None:
            attributes |= _error_attributes(error)
        end_seconds = trace.began_seconds + ending.duration_seconds
        self._finish(trace.end(end_seconds, attributes, "" if error is None else _words(error)))

    # --- inside ---

    def _of(self, call: GenerationCall) -> RequestTrace | None:
        return None if call.trace is None else self._live.get(call.trace.span_id)

    def _begin(self, call: GenerationCall) -> RequestTrace | None:
        if call.trace is None:
            return None
        operation = "chat" if call.is_chat else "text_completion"
        began_seconds = self._clock() if call.arrival_seconds is None else call.arrival_seconds
        attributes: Attributes = {
            names.OPERATION: operation,
            names.PROVIDER: "plimsoll",
            names.REQUEST_MODEL: self._model,
            **_request_attributes(call),
        }
        return RequestTrace(call.trace, f"{operation} {self._model}", began_seconds, attributes)

    def _finish(self, tree: SpanTree) -> None:
        if is_kept(tree):
            self._send(tree)


def _request_attributes(call: GenerationCall) -> Attributes:
    sampling = call.sampling
    attributes: Attributes = {
        names.RESPONSE_ID: call.request_id,
        names.USAGE_INPUT_TOKENS: len(call.prompt_ids),
        names.REQUEST_TEMPERATURE: sampling.temperature,
        names.REQUEST_TOP_P: sampling.top_p,
        names.REQUEST_TOP_K: sampling.top_k,
        names.REQUEST_CHOICES: call.candidate_count,
        names.PRIORITY: call.priority,
    }
    if sampling.seed < 2**63:  # a span has no larger numbers
        attributes[names.REQUEST_SEED] = sampling.seed
    if call.max_tokens is not None:
        attributes[names.REQUEST_MAX_TOKENS] = call.max_tokens
    if call.tenant:
        attributes[names.TENANT] = call.tenant
    return attributes


def _ending_attributes(ending: Ending) -> Attributes:
    usage = ending.usage
    attributes: Attributes = {
        names.RESPONSE_FINISH_REASONS: [
            "none" if reason is None else reason.name.lower() for reason in ending.finish_reasons
        ],
        names.USAGE_OUTPUT_TOKENS: usage.completion_tokens,
        names.USAGE_CACHE_READ: usage.cached_prompt_tokens,
        names.RECOMPUTED_TOKENS: usage.recomputed_tokens,
    }
    first_seconds = ending.timings.time_to_first_token_seconds
    if first_seconds:  # 0: the client has got none
        attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = first_seconds
    if ending.error is None and not ending.completed:
        attributes[names.OUTCOME] = "cancelled"
    return attributes


def _error_attributes(error: RequestError) -> Attributes:
    return {names.ERROR_TYPE: type(error).__name__}


def _words(error: RequestError) -> str:
    """What the operator is told. The facts of an error are in the log."""
    return type(error).__name__
