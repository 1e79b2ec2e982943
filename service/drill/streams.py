"""Live streams against a server, and a record of each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence

from service.client import (
    GenerationOptions,
    GenerationStream,
    PlimsollClient,
    PlimsollError,
    StreamBroken,
)
from service.drill.record import Arrival, Ending, Reference, StreamRecord

# Errors that look like "come back later" and are the loss of a request all the same.
_LOSSES = ("ENGINE_LOST", "DEVICE_MEMORY_EXHAUSTED")
_ASK_AGAIN_SECONDS = 0.5  # where the server does not say when

Clock = Callable[[], float]


class NoReferenceError(Exception):
    """An undisturbed request failed: there is nothing to compare with."""


class LiveStreams:
    """Keeps a number of streams running; each asks one prompt after the other.

    The client must neither retry nor resume: that nothing is lost is the server's promise.
    """

    def __init__(
        self,
        client: PlimsollClient,
        prompts: Sequence[str],
        options: GenerationOptions,
        clock: Clock,
    ) -> None:
        """`clock` answers seconds since the beginning of the drill."""
        self.records: list[StreamRecord] = []
        self._client = client
        self._prompts = prompts
        self._options = options
        self._clock = clock
        self._stopping = asyncio.Event()

    async def references(self, at_once: int) -> list[Reference]:
        """Asks every prompt once and answers what came; these are not recorded.

        Raises:
            NoReferenceError: one of them failed.
        """
        slots = asyncio.Semaphore(at_once)

        async def one(index: int) -> Reference:
            async with slots:
                record = StreamRecord(index, index, self._clock())
                await self._follow(record)
            if record.ending is not Ending.DONE:
                raise NoReferenceError(f"undisturbed request {index}: {record.reason}")
            return Reference(tuple(record.token_ids), record.text)

        tasks = [asyncio.create_task(one(index)) for index in range(len(self._prompts))]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def run(self, at_once: int) -> None:
        """Streams until `stop`, then until what is live has ended; cancelling cuts it off."""
        order = itertools.cycle(range(len(self._prompts)))
        async with asyncio.TaskGroup() as workers:
            for _ in range(at_once):
                workers.create_task(self._work(order))

    def stop(self) -> None:
        """Lets the live streams end and starts no more."""
        self._stopping.set()

    def all_went_on_since(self, seconds: float) -> bool:
        """Whether every stream that was live then got tokens since, or has ended well."""
        return all(
            (record.last_seconds or 0.0) > seconds or record.ended_seconds is not None
            for record in self.records
            if record.is_live_in(seconds, seconds)
        )

    async def _work(self, order: Iterator[int]) -> None:
        while not self._stopping.is_set():
            record = StreamRecord(len(self.records), next(order), self._clock())
            self.records.append(record)
            again_seconds = await self._follow(record)
            if again_seconds > 0:
                await self._pause(again_seconds)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _follow(self, record: StreamRecord) -> float:
        """Reads one stream to its end; answers how long to wait before the next one."""
        pause_seconds = 0.0
        stream = self._client.stream(self._prompts[record.prompt], self._options)
        try:
            async with stream:
                await self._read(stream, record)
            record.ending = Ending.DONE
        except PlimsollError as error:
            is_loss = stream.start is not None or error.reason in _LOSSES
            refused = error.is_transient and not is_loss
            record.ending = Ending.REFUSED if refused else Ending.DROPPED
            record.reason = error.reason or error.code.name
            pause_seconds = error.retry_after_seconds or _ASK_AGAIN_SECONDS
        except StreamBroken as broken:
            record.ending = Ending.DROPPED
            record.reason = (broken.cause.reason if broken.cause else "") or "STREAM_BROKEN"
            pause_seconds = _ASK_AGAIN_SECONDS
        except asyncio.CancelledError:
            record.ending = Ending.CANCELLED
            raise
        finally:
            record.ended_seconds = self._clock()
        return pause_seconds

    async def _read(self, stream: GenerationStream, record: StreamRecord) -> None:
        async for chunk in stream:
            if chunk.token_ids:
                record.arrivals.append(Arrival(self._clock(), len(chunk.token_ids)))
                record.token_ids.extend(chunk.token_ids)
            record.text += chunk.text
            if chunk.finish_reason is not None:
                record.reason = chunk.finish_reason.label
        if stream.usage is not None:
            record.reported_tokens = stream.usage.completion_tokens
            record.recomputed_tokens = stream.usage.recomputed_tokens
        if stream.timings is not None:
            record.preemptions = stream.timings.preemption_count
