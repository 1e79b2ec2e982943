"""From our records to the spans of the OpenTelemetry SDK.

The SDK's tracer is not used: it takes the present time and the context of the running task, and a
request here is told of by an event loop that serves all of them.
"""

from __future__ import annotations

from importlib.metadata import version

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from service.telemetry.tracing.attributes import SCHEMA_URL
from service.telemetry.tracing.records import SpanRecord, SpanTree

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NANOSECONDS = 1_000_000_000


class SpanMaker:
    """Makes SDK spans of trees, on the clock of the machine."""

    def __init__(self, resource: Resource, unix_minus_monotonic_seconds: float) -> None:
        """What to add to monotonic times: taken once, so that spans keep their order."""
        self._resource = resource
        self._offset_seconds = unix_minus_monotonic_seconds
        self._scope = InstrumentationScope("plimsoll", version("plimsoll"), SCHEMA_URL)

    def spans(self, tree: SpanTree) -> list[ReadableSpan]:
        """The root first. All of a kept tree count as sampled, so that no collector halves it."""
        state = TraceState.from_header([tree.state]) if tree.state else TraceState()
        return [self._span(tree, record, state) for record in tree.spans]

    def _span(self, tree: SpanTree, record: SpanRecord, state: TraceState) -> ReadableSpan:
        is_root = record is tree.spans[0]
        parent = None
        if record.parent_span_id is not None:
            parent = self._context(tree, record.parent_span_id, state, is_remote=is_root)
        end_seconds = record.begin_seconds if record.end_seconds is None else record.end_seconds
        return ReadableSpan(
            name=record.name,
            context=self._context(tree, record.span_id, state),
            parent=parent,
            resource=self._resource,
            attributes=record.attributes,
            events=[
                Event(event.name, event.attributes, self._unix_ns(event.at_seconds))
                for event in record.events
            ],
            kind=SpanKind.SERVER if is_root else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, record.error) if record.error else Status(),
            start_time=self._unix_ns(record.begin_seconds),
            end_time=self._unix_ns(end_seconds),
            instrumentation_scope=self._scope,
        )

    def _context(
        self, tree: SpanTree, span_id: str, state: TraceState, *, is_remote: bool = False
    ) -> SpanContext:
        return SpanContext(int(tree.trace_id, 16), int(span_id, 16), is_remote, _SAMPLED, state)

    def _unix_ns(self, monotonic_seconds: float) -> int:
        return round((monotonic_seconds + self._offset_seconds) * _NANOSECONDS)
