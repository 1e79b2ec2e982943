"""Sends planned requests and records what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

import grpc

from service.bench.arrivals import Arrivals
from service.bench.record import Arrival, Outcome, RequestRecord
from service.bench.workload import PlannedRequest
from service.client import (
    Conversation,
    GenerationOptions,
    GenerationStream,
    PlimsollClient,
    PlimsollError,
    StreamBroken,
)

_REFUSALS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAVAILABLE,
}


class LoadGenerator:
    """Runs one load and keeps its records; its attributes can be watched meanwhile.

    The client should neither retry nor resume: a refusal is a result here.
    """

    def __init__(self, client: PlimsollClient, options: GenerationOptions) -> None:
        self.records: list[RequestRecord] = []
        self.running = 0
        self.output_tokens = 0
        self.duration_seconds = 0.0
        self._client = client
        self._options = options
        self._begin = time.perf_counter()

    @property
    def elapsed_seconds(self) -> float:
        """Since the beginning of the run."""
        return time.perf_counter() - self._begin

    async def run(
        self,
        requests: Iterable[PlannedRequest],
        arrivals: Arrivals,
        *,
        sending_seconds: float | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Sends the requests as `arrivals` lets them go and waits until all have ended.

        Args:
            sending_seconds: no new request after this time; None: until there is none left.
            stop: when set, sends no more and cancels what is running.
        """
        self._begin = time.perf_counter()
        work = asyncio.create_task(self._send(requests, arrivals, sending_seconds))
        stopping = asyncio.create_task((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            work.cancel()  # no effect when it is done
            with contextlib.suppress(asyncio.CancelledError):
                await work
            self.duration_seconds = self.elapsed_seconds

    async def _send(
        self,
        requests: Iterable[PlannedRequest],
        arrivals: Arrivals,
        sending_seconds: float | None,
    ) -> None:
        async with asyncio.TaskGroup() as running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(sending_seconds):
                    for request in requests:
                        await arrivals.next()
                        running.create_task(self._one(request, arrivals))

    async def _one(self, request: PlannedRequest, arrivals: Arrivals) -> None:
        record = RequestRecord(len(self.records), self.elapsed_seconds)
        self.records.append(record)
        self.running += 1
        stream = self._start(request)
        try:
            async with stream:
                await self._read(stream, record)
        except PlimsollError as error:
            refused = error.code in _REFUSALS and not record.arrivals
            record.outcome = Outcome.REFUSED if refused else Outcome.FAILED
            record.reason = error.reason or error.code.name
        except StreamBroken as broken:
            record.outcome = Outcome.FAILED
            record.reason = (broken.cause.reason if broken.cause else "") or "STREAM_BROKEN"
        finally:
            record.ended_seconds = self.elapsed_seconds
            self.running -= 1
            arrivals.finished()

    def _start(self, request: PlannedRequest) -> GenerationStream:
        options = self._options.replace(max_tokens=request.output_tokens)
        if isinstance(request.prompt, Conversation):
            return self._client.chat_stream(request.prompt, options)
        return self._client.stream(request.prompt, options)

    async def _read(self, stream: GenerationStream, record: RequestRecord) -> None:
        async for chunk in stream:
            if chunk.token_ids:
                self.output_tokens += len(chunk.token_ids)
                record.arrivals.append(Arrival(self.elapsed_seconds, len(chunk.token_ids)))
            if chunk.finish_reason is not None:
                record.reason = chunk.finish_reason.label
            if stream.start is not None:
                record.prompt_tokens = stream.start.prompt_tokens
                record.cached_prompt_tokens = stream.start.cached_prompt_tokens
        if stream.usage is not None:
            record.prompt_tokens = stream.usage.prompt_tokens
            record.cached_prompt_tokens = stream.usage.cached_prompt_tokens
        record.outcome = Outcome.OK
