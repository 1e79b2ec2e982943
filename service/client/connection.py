"""What all calls of one client share."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from grpc import aio

from service.api.gen.plimsoll.v1 import inference_pb2_grpc
from service.client.errors import error_from_rpc
from service.client.retry import RetryBudget, RetryPolicy, RetryState

T = TypeVar("T")


class Deadline:
    """The end of a call's time, over all its attempts."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self._end = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def remaining_seconds(self) -> float | None:
        """None: no limit. Never negative."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


@dataclass(slots=True)
class Connection:
    """Stub, credentials and retry state."""

    stub: inference_pb2_grpc.InferenceServiceAsyncStub
    model: str
    metadata: tuple[tuple[str, str], ...]
    retry: RetryPolicy
    resume: RetryPolicy | None  # None: a broken stream is not resumed
    budget: RetryBudget = field(default_factory=RetryBudget)
    rng: random.Random = field(default_factory=random.Random)

    async def unary(self, attempt: Callable[[float | None], Awaitable[T]], deadline: Deadline) -> T:
        """Makes one unary call, again while its error is transient.

        Args:
            attempt: starts the RPC with the given timeout in seconds.

        Raises:
            PlimsollError: the last attempt's error.
        """
        state = RetryState(self.retry, self.budget, self.rng)
        while True:
            try:
                answer = await attempt(deadline.remaining_seconds())
            except aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
                pause = state.pause_seconds(error, deadline.remaining_seconds())
                if pause is None:
                    raise error from None
            else:
                self.budget.record_success()
                return answer
            await asyncio.sleep(pause)


async def answers(call: aio.UnaryStreamCall[Any, T]) -> AsyncGenerator[T, None]:
    """The messages of a stream that is not resumed; cancels the call when it is closed.

    Raises PlimsollError.
    """
    try:
        async for message in call:
            yield message
    except aio.AioRpcError as rpc_error:
        raise error_from_rpc(rpc_error) from None
    finally:
        call.cancel()
