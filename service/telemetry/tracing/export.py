"""Sends span trees to a collector, from a thread of its own.

A collector that is slow, refuses or is not there costs traces and nothing else: the queue is
bounded, and what finds no place in it is counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from service.telemetry.tracing.figures import SpanFigures
from service.telemetry.tracing.records import SpanTree

_log = structlog.get_logger(__name__)

MAX_QUEUED_SPANS = 4096
_BATCH_SPANS = 512
_LINGER_SECONDS = 1.0  # so that spans travel together


class SpanQueue:
    """Takes trees on any thread and exports them in batches. Whole trees are left out."""

    def __init__(
        self, exporter: SpanExporter, spans_of: Callable[[SpanTree], list[ReadableSpan]]
    ) -> None:
        self.figures = SpanFigures()
        self._exporter = exporter
        self._spans_of = spans_of
        self._trees: deque[SpanTree] = deque()
        self._queued_spans = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Begins to export."""
        self._thread.start()

    def put(self, tree: SpanTree) -> None:
        """Queues a tree, or leaves it out. Never waits for a collector."""
        with self._changed:
            if self._is_closed or self._queued_spans + len(tree.spans) > MAX_QUEUED_SPANS:
                self.figures.dropped += len(tree.spans)
                return
            self._trees.append(tree)
            self._queued_spans += len(tree.spans)
            if self._queued_spans >= _BATCH_SPANS:
                self._changed.notify()

    def close(self, seconds: float) -> None:
        """Exports what is queued, for so long at most; what is left then is lost.

        Not to be called on an event loop.
        """
        give_up_at = time.monotonic() + seconds
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(seconds)
        # Ends an export that is under way, and its retries.
        remaining_seconds = max(0.0, give_up_at - time.monotonic())
        self._exporter.shutdown(timeout_millis=remaining_seconds * 1e3)  # type: ignore[call-arg]
        with self._changed:
            self.figures.dropped += self._queued_spans
            self._trees.clear()
            self._queued_spans = 0

    # --- thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._is_closed:
                    self._changed.wait_for(self._is_due, _LINGER_SECONDS)
                trees = self._take()
                if not trees and self._is_closed:
                    return
            spans = [span for tree in trees for span in self._converted(tree)]
            if spans:
                self._export(spans)

    def _is_due(self) -> bool:
        return self._is_closed or self._queued_spans >= _BATCH_SPANS

    def _take(self) -> list[SpanTree]:
        trees: list[SpanTree] = []
        spans = 0
        while self._trees and (not trees or spans + len(self._trees[0].spans) <= _BATCH_SPANS):
            trees.append(self._trees.popleft())
            spans += len(trees[-1].spans)
        self._queued_spans -= spans
        return trees

    def _converted(self, tree: SpanTree) -> list[ReadableSpan]:
        """The spans of a tree; none of one that cannot be converted, which is counted."""
        try:
            return self._spans_of(tree)
        except Exception:  # noqa: BLE001  # a mistake of ours costs one trace, and is told
            _log.exception("trace not converted", spans=len(tree.spans))
            with self._changed:
                self.figures.failed += len(tree.spans)
            return []

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        try:
            is_taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001  # one batch is lost, and told; the next one may do
            _log.exception("traces not exported", spans=len(spans))
            is_taken = False
        with self._changed:
            if is_taken:
                self.figures.exported += len(spans)
            else:
                self.figures.failed += len(spans)
