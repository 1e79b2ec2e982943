"""Replays a published trace through the real cache manager, in simulated time.

    >>> from kvcache.replay import ReplaySettings, TraceRequest, replay
    >>> trace = [TraceRequest(0.0, 512, 4, hash_ids=(7,)), TraceRequest(9.0, 1024, 4, (7, 8))]
    >>> report = replay(trace, ReplaySettings(num_blocks=80, block_tokens=16))
    >>> report.requests.finished, report.cache.hit_tokens
    (2, 512)

`read_trace` reads Mooncake's JSON lines and Azure's CSV. `replay` plays a trace as it arrived,
with a simple model of what a step costs; `insert_in_order` puts every prompt whole into the
cache, one after the other, which is how eviction policies are compared in print. No model, no
memory behind the blocks, no clock and no random numbers: the same input gives the same report.
"""

from kvcache.replay.in_order import insert_in_order
from kvcache.replay.report import (
    CacheFigures,
    ReplayReport,
    RequestFigures,
    Spread,
    TimelineSample,
)
from kvcache.replay.settings import ReplaySettings
from kvcache.replay.simulator import ReplaySimulator, replay
from kvcache.replay.trace import TraceError, TraceRequest, numbered_lines, read_trace

__all__ = [
    "CacheFigures",
    "ReplayReport",
    "ReplaySettings",
    "ReplaySimulator",
    "RequestFigures",
    "Spread",
    "TimelineSample",
    "TraceError",
    "TraceRequest",
    "insert_in_order",
    "numbered_lines",
    "read_trace",
    "replay",
]
