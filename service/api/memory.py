"""SetMemoryUtilization: from what a request asks for to blocks, and the answer. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from service.api.answers import duration
from service.api.checks import Checks, seconds_of
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.api.stats import blocks_message
from service.engine.messages import ShrinkPolicy
from service.front.state import FrontStats, MemoryChange, ModelInfo

DEFAULT_LIMIT_SECONDS = 30.0
MAX_LIMIT_SECONDS = 3600.0

_POLICIES = {
    pb.SHRINK_POLICY_UNSPECIFIED: ShrinkPolicy.WAIT,
    pb.SHRINK_POLICY_WAIT: ShrinkPolicy.WAIT,
    pb.SHRINK_POLICY_PREEMPT: ShrinkPolicy.PREEMPT,
}


@dataclass(slots=True, frozen=True)
class MemoryOrder:
    """A request whose limits are kept."""

    num_blocks: int  # usable ones
    policy: ShrinkPolicy
    limit_seconds: float


def check_memory_request(request: pb.SetMemoryUtilizationRequest, model: ModelInfo) -> MemoryOrder:
    """Raises InvalidRequest for a size that the pool of the model cannot have."""
    checks = Checks()
    num_blocks = _target_blocks(request, model, checks)
    policy = _POLICIES.get(request.shrink_policy)
    if policy is None:
        checks.refuse("shrink_policy", request.shrink_policy, "must be a ShrinkPolicy")
        policy = ShrinkPolicy.WAIT
    limit_seconds = DEFAULT_LIMIT_SECONDS
    if request.HasField("time_limit"):
        limit_seconds = seconds_of(request.time_limit)
        checks.above_in_range("time_limit", limit_seconds, 0, MAX_LIMIT_SECONDS, "seconds")
    checks.finish()
    return MemoryOrder(num_blocks, policy, limit_seconds)


def memory_message(
    change: MemoryChange, before: FrontStats, after: FrontStats
) -> pb.SetMemoryUtilizationResponse:
    answer = pb.SetMemoryUtilizationResponse(
        preempted_candidates=change.preempted, elapsed=duration(change.elapsed_seconds)
    )
    for message, stats, total in (
        (answer.before, before, change.before_blocks),
        (answer.after, after, change.num_blocks),
    ):
        if stats.engine is not None:  # None: the engine has not spoken yet
            message.CopyFrom(blocks_message(stats, stats.engine))
        message.total = total
    return answer


def _target_blocks(
    request: pb.SetMemoryUtilizationRequest, model: ModelInfo, checks: Checks
) -> int:
    most = model.max_blocks
    match request.WhichOneof("target"):
        case "memory_utilization":
            share = request.memory_utilization
            checks.above_in_range("memory_utilization", share, 0, 1)
            return max(1, math.floor(share * most)) if 0 < share <= 1 else 0
        case "total_blocks":
            checks.in_range("total_blocks", request.total_blocks, 1, most, "blocks")
            return request.total_blocks
        case "memory_bytes":
            least_bytes, most_bytes = 2 * model.bytes_per_block, (most + 1) * model.bytes_per_block
            checks.in_range("memory_bytes", request.memory_bytes, least_bytes, most_bytes, "bytes")
            return request.memory_bytes // model.bytes_per_block - 1
        case _:
            limit = "must be memory_utilization, total_blocks or memory_bytes"
            checks.refuse("target", None, limit)
            return 0
