"""Questions to the engine, and who waits for the answers."""

from __future__ import annotations

import asyncio
import itertools
from typing import TypeAlias

from service.engine.messages import (
    Flush,
    Flushed,
    LookedUp,
    Lookup,
    Resize,
    Resized,
    ShrinkPolicy,
)
from service.front.events import NotReady
from service.front.supervisor import Supervisor

Answer: TypeAlias = Flushed | LookedUp | Resized


class EngineCalls:
    """One message to the engine each, and one back.

    All that answer raise NotReady without an engine that reads, or when it dies first.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._ids = itertools.count()
        self._open: dict[int, asyncio.Future[Answer]] = {}

    async def flush(self, namespace: bytes | None) -> Flushed:
        """Drops cached blocks."""
        answer = await self._ask(Flush(next(self._ids), namespace))
        assert isinstance(answer, Flushed)
        return answer

    async def lookup(self, namespace: bytes, token_ids: list[int]) -> int:
        """Leading tokens in the cache."""
        answer = await self._ask(Lookup(next(self._ids), namespace, token_ids))
        assert isinstance(answer, LookedUp)
        return answer.cached_tokens

    async def resize(self, num_blocks: int, policy: ShrinkPolicy, limit_seconds: float) -> Resized:
        """Gives the pool another size."""
        answer = await self._ask(Resize(next(self._ids), num_blocks, policy, limit_seconds))
        assert isinstance(answer, Resized)
        return answer

    def order_resize(self, num_blocks: int, policy: ShrinkPolicy, limit_seconds: float) -> None:
        """As `resize`, for one who does not wait for the answer."""
        self._supervisor.send(Resize(next(self._ids), num_blocks, policy, limit_seconds))

    def answered(self, answer: Answer) -> None:
        """The engine said this."""
        waiting = self._open.pop(answer.call_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self) -> None:
        """No answer will come."""
        calls, self._open = self._open, {}
        for waiting in calls.values():
            if not waiting.done():
                waiting.set_exception(NotReady())

    async def _ask(self, question: Flush | Lookup | Resize) -> Answer:
        if not self._supervisor.writable:
            raise NotReady
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[question.call_id] = waiting
        self._supervisor.send(question)
        try:
            return await waiting
        finally:
            self._open.pop(question.call_id, None)
