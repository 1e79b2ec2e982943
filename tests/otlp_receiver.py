"""A collector in the process of the test: keeps what comes by OTLP/gRPC, or gives trouble."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans unless told otherwise."""

    def __init__(self) -> None:
        self.refusal: grpc.StatusCode | None = None
        self.unblocked = threading.Event()  # an export waits for it: a collector that is slow
        self.unblocked.set()
        self.exports = 0  # calls that have come, answered or not
        self.spans: list[Span] = []
        self.resources: list[Resource] = []
        self.scopes: list[tuple[str, str]] = []  # name and schema
        self.raw = b""  # all requests that were taken
        self.port = 0
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """As the setting wants it."""
        return f"http://127.0.0.1:{self.port}"

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._lock:
            self.exports += 1
        while not self.unblocked.wait(0.02):
            if not context.is_active():  # whoever asked has left
                context.abort(grpc.StatusCode.CANCELLED, "nobody waits")
        if self.refusal is not None:
            context.abort(self.refusal, "told to refuse")
        with self._lock:
            self.raw += request.SerializeToString()
            for resource_spans in request.resource_spans:
                self.resources.append(resource_spans.resource)
                for scope_spans in resource_spans.scope_spans:
                    self.scopes.append((scope_spans.scope.name, scope_spans.schema_url))
                    self.spans.extend(scope_spans.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def traces(self) -> dict[str, Trace]:
        """What has come, by trace id."""
        with self._lock:
            spans = list(self.spans)
        by_id: dict[str, list[Span]] = {}
        for span in spans:
            by_id.setdefault(span.trace_id.hex(), []).append(span)
        return {trace_id: Trace(of_one) for trace_id, of_one in by_id.items()}

    def trace_of(self, request_id: str) -> Trace:
        """The only trace of a request."""
        (trace,) = (t for t in self.traces.values() if t.request_id == request_id)
        return trace

    def wait_for(self, spans: int, limit_seconds: float = 120.0) -> None:
        """Until so many have come."""
        give_up = time.monotonic() + limit_seconds
        while len(self.spans) < spans:
            assert time.monotonic() < give_up, f"{len(self.spans)} of {spans} spans came"
            time.sleep(0.01)


@dataclass(frozen=True)
class Trace:
    """The spans of one trace that this server has made."""

    spans: list[Span]

    @property
    def root(self) -> Span:
        """The span whose parent is not among them."""
        ids = {span.span_id for span in self.spans}
        (root,) = (span for span in self.spans if span.parent_span_id not in ids)
        return root

    @property
    def request_id(self) -> str:
        """As the root tells it."""
        request_id: str = attributes(self.root)["gen_ai.response.id"]
        return request_id

    @property
    def children(self) -> dict[bytes, list[Span]]:
        """By the id of the parent, in the order of their beginning."""
        found: dict[bytes, list[Span]] = {}
        for span in sorted(self.spans, key=lambda span: span.start_time_unix_nano):
            found.setdefault(span.parent_span_id, []).append(span)
        return found

    @property
    def shape(self) -> list[str]:
        """Names of the root's children in the order of their beginning."""
        return [span.name for span in self.children.get(self.root.span_id, [])]

    def named(self, name: str) -> list[Span]:
        """In the order of their beginning."""
        children = self.children.get(self.root.span_id, [])
        return [span for span in children if span.name == name]

    def only(self, name: str) -> Span:
        """The one child of this name."""
        (span,) = self.named(name)
        return span

    def assert_whole(self) -> None:
        """A tree of ids that differ, each span within its parent and each event within its span."""
        by_id = {span.span_id: span for span in self.spans}
        assert len(by_id) == len(self.spans)
        root = self.root
        for span in self.spans:
            assert span.start_time_unix_nano <= span.end_time_unix_nano, span.name
            for event in span.events:
                assert span.start_time_unix_nano <= event.time_unix_nano, event.name
                assert event.time_unix_nano <= span.end_time_unix_nano, event.name
            if span is root:
                continue
            parent = by_id[span.parent_span_id]
            assert parent.start_time_unix_nano <= span.start_time_unix_nano, span.name
            assert span.end_time_unix_nano <= parent.end_time_unix_nano, span.name


def attributes(source: Any) -> dict[str, Any]:
    """Of a span, an event or a resource."""
    pairs: list[KeyValue] = source.attributes
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextlib.contextmanager
def otlp_receiver(port: int = 0, host: str = "127.0.0.1") -> Iterator[OtlpReceiver]:
    """A receiver on a loopback port until the block ends."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.port = server.add_insecure_port(f"{host}:{port}")
    server.start()
    try:
        yield receiver
    finally:
        receiver.unblocked.set()
        server.stop(None).wait()


def free_port(host: str = "127.0.0.1") -> int:
    """A loopback port where nobody listens."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
