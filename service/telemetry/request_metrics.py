"""Counts requests and their times as the front tells of them."""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.messages import FinishReason
from service.front import events
from service.front.call import GenerationCall
from service.front.observer import Ending, RequestObserver
from service.telemetry.catalog import requests, tenants
from service.telemetry.exporter import Exporter
from service.telemetry.series import CounterSeries, HistogramSeries
from service.telemetry.tenants import TenantNames

OUTCOMES: dict[type[events.RequestError], str] = {
    events.AbortedByAdmin: "aborted",
    events.DeadlinePassed: "deadline_passed",
    events.DeadlineUnreachable: "deadline_unreachable",
    events.DeviceExhausted: "device_exhausted",
    events.Draining: "draining",
    events.EngineCrashedByRequest: "engine_crashed",
    events.EngineLost: "engine_lost",
    events.ExceedsCapacity: "exceeds_capacity",
    events.ModelFailed: "model_failed",
    events.QueueFull: "queue_full",
    events.SlowReader: "slow_reader",
}
REASONS: dict[type[events.RequestError], str] = {
    events.DeadlineUnreachable: "deadline_unreachable",
    events.Draining: "draining",
    events.DuplicateRequestId: "duplicate_id",
    events.NotReady: "not_ready",
    events.QueueFull: "queue_full",
}


@dataclass(frozen=True, slots=True)
class _TenantMetrics:
    admitted: CounterSeries
    finished: CounterSeries
    refused: CounterSeries
    prompt_tokens: CounterSeries
    output_tokens: CounterSeries
    first_token: HistogramSeries


def exemplar(call: GenerationCall) -> dict[str, str] | None:
    """The trace of a request beside what it took, if it is one that can be looked up."""
    trace = call.trace
    return {"trace_id": trace.trace_id} if trace is not None and trace.is_sampled else None


class RequestMetrics(RequestObserver):
    """The metrics of `catalog.requests` and `catalog.tenants` that are events, not states."""

    def __init__(self, exporter: Exporter, names: TenantNames) -> None:
        self._exporter = exporter
        self._names = names
        self._tenants: dict[str, _TenantMetrics] = {}
        for name in names.all():
            self._named(name)

        self._admitted = exporter.counter(requests.ADMITTED)
        self._finished = {
            outcome: exporter.counter(requests.FINISHED, outcome)
            for outcome in (*OUTCOMES.values(), "completed", "cancelled")
        }
        self._refused = {
            reason: exporter.counter(requests.REFUSED, reason) for reason in REASONS.values()
        }
        self._candidates: dict[FinishReason | None, CounterSeries] = {
            reason: exporter.counter(requests.CANDIDATES_FINISHED, reason.name.lower())
            for reason in FinishReason
        }
        self._candidates[None] = exporter.counter(requests.CANDIDATES_FINISHED, "none")

        self._prompt_tokens = exporter.counter(requests.PROMPT_TOKENS)
        self._cached_prompt_tokens = exporter.counter(requests.CACHED_PROMPT_TOKENS)
        self._output_tokens = exporter.counter(requests.OUTPUT_TOKENS)
        self._recomputed_tokens = exporter.counter(requests.RECOMPUTED_TOKENS)
        self._resubmitted = exporter.counter(requests.RESUBMITTED)

        self._first_token = exporter.histogram(requests.FIRST_TOKEN)
        self._token_gap = exporter.histogram(requests.TOKEN_GAP)
        self._queue = exporter.histogram(requests.QUEUE)
        self._prefill = exporter.histogram(requests.PREFILL)
        self._decode = exporter.histogram(requests.DECODE)
        self._duration = exporter.histogram(requests.DURATION)
        self._request_prompt_tokens = exporter.histogram(requests.REQUEST_PROMPT_TOKENS)
        self._request_output_tokens = exporter.histogram(requests.REQUEST_OUTPUT_TOKENS)

    # --- RequestObserver ---

    def refused(self, call: GenerationCall, error: events.RequestError) -> None:
        self._refused[REASONS[type(error)]].inc()
        self._of(call).refused.inc()

    def admitted(self, call: GenerationCall) -> None:
        tokens = len(call.prompt_ids)
        tenant = self._of(call)
        self._admitted.inc()
        self._prompt_tokens.inc(tokens)
        self._request_prompt_tokens.observe(tokens)
        tenant.admitted.inc()
        tenant.prompt_tokens.inc(tokens)

    def scheduled(self, call: GenerationCall, queue_seconds: float) -> None:
        self._queue.observe(queue_seconds, exemplar(call))

    def first_token(
        self, call: GenerationCall, since_arrival_seconds: float, since_batch_seconds: float
    ) -> None:
        self._first_token.observe(since_arrival_seconds, exemplar(call))
        self._of(call).first_token.observe(since_arrival_seconds)
        self._prefill.observe(since_batch_seconds)

    def received(self, call: GenerationCall, tokens: int, gap_seconds: float | None) -> None:
        self._output_tokens.inc(tokens)
        self._of(call).output_tokens.inc(tokens)
        if gap_seconds is not None:
            self._token_gap.observe(gap_seconds, exemplar(call))

    def resumed(self, call: GenerationCall, candidate: int) -> None:
        self._resubmitted.inc()

    def ended(self, call: GenerationCall, ending: Ending) -> None:
        if ending.error is not None:
            outcome = OUTCOMES[type(ending.error)]
        else:
            outcome = "completed" if ending.completed else "cancelled"
        self._finished[outcome].inc()
        self._of(call).finished.inc()
        for reason in ending.finish_reasons:
            self._candidates[reason].inc()
        self._cached_prompt_tokens.inc(ending.usage.cached_prompt_tokens)
        self._recomputed_tokens.inc(ending.usage.recomputed_tokens)
        if ending.completed:
            self._decode.observe(ending.timings.decode_seconds)
            self._duration.observe(ending.duration_seconds, exemplar(call))
            self._request_output_tokens.observe(ending.usage.completion_tokens)

    # --- inside ---

    def _of(self, call: GenerationCall) -> _TenantMetrics:
        return self._named(self._names.of(call.tenant))

    def _named(self, name: str) -> _TenantMetrics:
        metrics = self._tenants.get(name)
        if metrics is None:
            metrics = self._tenants[name] = _TenantMetrics(
                admitted=self._exporter.counter(tenants.ADMITTED, name),
                finished=self._exporter.counter(tenants.FINISHED, name),
                refused=self._exporter.counter(tenants.REFUSED, name),
                prompt_tokens=self._exporter.counter(tenants.PROMPT_TOKENS, name),
                output_tokens=self._exporter.counter(tenants.OUTPUT_TOKENS, name),
                first_token=self._exporter.histogram(tenants.FIRST_TOKEN, name),
            )
        return metrics
