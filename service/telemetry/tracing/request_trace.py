"""The spans of one request, made of what its observer hears. Pure."""

from __future__ import annotations

from service.engine.figures import Incident, PreemptionMode
from service.engine.messages import Preempted, Prefilled, Readmitted
from service.front.trace_context import TraceContext, new_span_id
from service.telemetry.tracing import attributes as names
from service.telemetry.tracing.records import Attributes, SpanEvent, SpanRecord, SpanTree

# A request that is preempted for ever, or a prompt of a million tokens, has a bounded trace.
MAX_SPANS = 128
MAX_EVENTS = 256


class RequestTrace:
    """Grows until `end`, which closes whatever is open.

    Children of the root: `queue` until the first batch, `prefill` until the first token, with an
    event for each chunk, `decode` until the end; and over them `preempted` or `swapped`, from the
    loss of the blocks to the return into the batch, and `resubmitted`, from the death of an engine
    until the next one goes on. There is none for a token.
    """

    def __init__(
        self, context: TraceContext, name: str, began_seconds: float, attributes: Attributes
    ) -> None:
        """The request arrived at `began_seconds`."""
        self._context = context
        self._root = SpanRecord(
            name, context.span_id, context.parent_span_id, began_seconds, attributes=attributes
        )
        self._spans = [self._root]
        self._stage: SpanRecord | None = self._open("queue", began_seconds)
        self._gaps: dict[int, SpanRecord | None] = {}  # by candidate that is out of the batch
        self._is_troubled = False
        self._events = 0
        self._left_out_spans = 0
        self._left_out_events = 0

    @property
    def began_seconds(self) -> float:
        """When the request arrived."""
        return self._root.begin_seconds

    def scheduled(self, at_seconds: float) -> None:
        """It is in a batch for the first time."""
        self._next_stage("prefill", at_seconds)

    def prefilled(self, candidate: int, chunk: Prefilled) -> None:
        """A chunk was computed; after the first token, one of what had been lost."""
        attributes: Attributes = {names.CANDIDATE: candidate, names.TOKENS: chunk.tokens}
        self._tell(self._stage, "chunk", chunk.ended_seconds, attributes)

    def first_token(self, at_seconds: float) -> None:
        """Of whichever candidate."""
        self._next_stage("decode", at_seconds)

    def preempted(self, candidate: int, loss: Preempted) -> None:
        """It lost blocks, and waits."""
        attributes: Attributes = {
            names.PREEMPTION_MODE: loss.mode.name.lower(),
            names.PREEMPTION_REASON: loss.reason.name.lower(),
            names.LOST_TOKENS: loss.lost_tokens,
        }
        name = "swapped" if loss.mode is PreemptionMode.SWAP else "preempted"
        self._leave(candidate, name, loss.at_seconds, attributes)

    def readmitted(self, candidate: int, entry: Readmitted) -> None:
        """It is in the batch again."""
        self._return(candidate, entry.at_seconds, {names.CACHED_TOKENS: entry.cached_tokens})

    def interrupted(self, candidate: int, at_seconds: float) -> None:
        """The engine that computed it died."""
        self._leave(candidate, "resubmitted", at_seconds, {})

    def resubmitted(self, candidate: int, at_seconds: float) -> None:
        """It was sent to the next engine."""
        self._tell(self._gaps.get(candidate), "sent to a new engine", at_seconds, {})

    def resumed(self, candidate: int, at_seconds: float) -> None:
        """The next engine goes on with it."""
        self._return(candidate, at_seconds, {})

    def ran_out_of_memory(self, at_seconds: float, incident: Incident) -> None:
        """A step that it was in found no device memory."""
        self._is_troubled = True
        attributes: Attributes = {names.OOM_WANTED_BYTES: incident.wanted_bytes}
        if incident.rung is not None:
            attributes[names.OOM_RUNG] = incident.rung.name.lower()
        self._tell(self._root, "out of device memory", at_seconds, attributes)

    def end(self, at_seconds: float, attributes: Attributes, error: str = "") -> SpanTree:
        """It is over; nothing may follow. `error` in words, empty where there was none."""
        self._root.attributes |= attributes
        if error:
            self._root.error = error
            self._is_troubled = True
        if self._left_out_spans:
            self._root.attributes[names.LEFT_OUT_SPANS] = self._left_out_spans
        if self._left_out_events:
            self._root.attributes[names.LEFT_OUT_EVENTS] = self._left_out_events
        end_seconds = max(
            at_seconds, *(span.end_seconds or _last_seconds(span) for span in self._spans)
        )
        for span in self._spans:
            if span.end_seconds is None:
                span.end_seconds = end_seconds
        context = self._context
        return SpanTree(
            context.trace_id, context.state, context.is_sampled, self._spans, self._is_troubled
        )

    # --- inside ---

    def _open(self, name: str, at_seconds: float) -> SpanRecord | None:
        """A new child; None when there are too many."""
        if len(self._spans) >= MAX_SPANS:
            self._left_out_spans += 1
            return None
        # What the engine says of a time before the arrival is a matter of rounding.
        begin_seconds = max(at_seconds, self._root.begin_seconds)
        span = SpanRecord(name, new_span_id(), self._root.span_id, begin_seconds)
        self._spans.append(span)
        return span

    def _next_stage(self, name: str, at_seconds: float) -> None:
        _close(self._stage, at_seconds)
        self._stage = self._open(name, at_seconds)

    def _leave(self, candidate: int, name: str, at_seconds: float, attributes: Attributes) -> None:
        self._is_troubled = True
        self._return(candidate, at_seconds, {})  # it may be out of the batch already
        span = self._gaps[candidate] = self._open(name, at_seconds)
        if span is not None:
            span.attributes = {names.CANDIDATE: candidate, **attributes}

    def _return(self, candidate: int, at_seconds: float, attributes: Attributes) -> None:
        span = self._gaps.pop(candidate, None)
        if span is not None:
            span.attributes |= attributes
            _close(span, at_seconds)

    def _tell(
        self, span: SpanRecord | None, name: str, at_seconds: float, attributes: Attributes
    ) -> None:
        if span is None or self._events >= MAX_EVENTS:
            self._left_out_events += 1
            return
        self._events += 1
        span.events.append(SpanEvent(name, max(at_seconds, span.begin_seconds), attributes))


def _close(span: SpanRecord | None, at_seconds: float) -> None:
    if span is not None:
        span.end_seconds = max(at_seconds, _last_seconds(span))


def _last_seconds(span: SpanRecord) -> float:
    return max([span.begin_seconds, *(event.at_seconds for event in span.events)])
