"""Request lengths from published traces, as `kvcache.replay` reads them."""

from __future__ import annotations

from pathlib import Path

from kvcache.replay import trace
from service.bench.workload import Lengths, WorkloadError


def read_trace(path: Path) -> list[Lengths]:
    """The lengths of all requests of a trace, in order.

    Raises:
        WorkloadError: no trace, or one with a line that makes no sense.
    """
    try:
        requests = trace.read_trace(path)
    except trace.TraceError as error:
        raise WorkloadError(str(error)) from error
    return [
        Lengths(request.prompt_tokens, request.output_tokens, request.hash_ids)
        for request in requests
    ]
