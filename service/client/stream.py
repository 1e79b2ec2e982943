"""One streamed answer, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from types import TracebackType
from typing import Self, TypeAlias, cast

import grpc
from grpc import aio

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.client.connection import Connection, Deadline
from service.client.errors import PlimsollError, StreamBroken, error_from_rpc
from service.client.options import GenerationOptions
from service.client.outputs import (
    Chunk,
    Generation,
    Start,
    Timings,
    Usage,
    chunk_from_proto,
    joined,
)
from service.client.requests import Prompt, stream_request
from service.client.resume import Diverged, Received
from service.client.retry import RetryState
from service.client.segments import Segment, SegmentPlanner

_Response: TypeAlias = pb.GenerateStreamResponse | pb.ChatStreamResponse

_MAX_REQUEST_ID_BYTES = 128  # limit of the API


class GenerationStream:
    """Async iterator over the chunks of an answer.

    Use it as `async for chunk in stream`; leave early with `async with` or `aclose()`, which
    cancels the call and frees its KV blocks. `start` is set from the first chunk on, `usage`
    and `timings` after the last one.

    Until the first chunk a transient error is retried as the client's `retry` policy says.
    After it, a stream that breaks because the server went away is resumed under the
    `resume` policy (see `service.client.resume`): the joined text has no lost or repeated
    characters. Usage then counts the whole answer, timings those of the last connection.

    Raises while iterating:
        PlimsollError: the server refused or ended the request, or the time is over.
        StreamBroken: the stream broke and cannot be resumed.
    """

    def __init__(
        self,
        connection: Connection,
        prompt: Prompt,
        options: GenerationOptions,
        *,
        request_id: str,
        timeout_seconds: float | None,
    ) -> None:
        self.request_id = request_id
        self.start: Start | None = None
        self.usage: Usage | None = None
        self.timings: Timings | None = None
        self.resumptions = 0
        self._resume_attempts = 0
        self._connection = connection
        self._deadline = Deadline(timeout_seconds)
        self._planner = SegmentPlanner(connection, prompt, options, self._deadline)
        self._received: dict[int, Received] = {}  # by candidate
        self._retry = RetryState(connection.retry, connection.budget, connection.rng)
        self._resume: RetryState | None = None  # set once the stream broke
        self._chunks = self._run()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the stream; a running call is cancelled. Harmless when it has ended."""
        await self._chunks.aclose()

    async def collect(self) -> Generation:
        """Reads a stream from its beginning and returns the whole answer."""
        return self.generation([chunk async for chunk in self])

    def generation(self, chunks: Sequence[Chunk]) -> Generation:
        """The whole answer, from all the chunks of this stream, after its end."""
        if self.start is None or self.usage is None or self.timings is None:
            raise ValueError("the stream has not ended")
        return Generation(
            self.request_id,
            self.start.model,
            tuple(joined(index, chunks) for index in sorted(self._received)),
            self.usage,
            self.timings,
        )

    async def _run(self) -> AsyncGenerator[Chunk, None]:
        while True:
            try:
                segment = await self._next_segment()
                async with contextlib.aclosing(self._read(segment)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
            except Diverged as divergence:
                raise self._broken(str(divergence), None) from divergence
            else:
                self._connection.budget.record_success()
                return
            await asyncio.sleep(self._pause_seconds(error))

    async def _next_segment(self) -> Segment:
        if self._resume is None or self.start is None:
            return self._planner.first()
        self._resume_attempts += 1
        return await self._planner.resumed(self.start, self._received)

    def _pause_seconds(self, error: PlimsollError) -> float:
        """How long to wait before the next attempt; raises when there is none."""
        if self._received and self._resume is None:
            if not error.breaks_streams:
                raise error
            if self._connection.resume is None:
                raise self._broken("resuming is switched off", error)
            # No budget: the streams of a server that restarts all break at once.
            self._resume = RetryState(self._connection.resume, None, self._connection.rng)
        state = self._resume or self._retry
        pause = state.pause_seconds(error, self._deadline.remaining_seconds())
        if pause is not None:
            return pause
        raise self._broken("the server did not take it up again", error) if self._resume else error

    def _broken(self, why: str, cause: PlimsollError | None) -> StreamBroken:
        first = self._received.get(0)
        return StreamBroken(
            why,
            tokens_received=sum(len(r.token_ids) for r in self._received.values()),
            text=first.text if first else "",
            cause=cause,
        )

    async def _read(self, segment: Segment) -> AsyncGenerator[Chunk, None]:
        """The chunks of one RPC that are new to the caller."""
        call = self._call(segment)
        ended = False
        try:
            async for response in cast("AsyncIterable[_Response]", call):
                match response.WhichOneof("event"):
                    case "start":
                        self._on_start(Start.from_proto(response.start), segment)
                    case "deltas":
                        for delta in response.deltas.deltas:
                            if chunk := await self._on_delta(chunk_from_proto(delta), segment):
                                yield chunk
                    case "end":
                        self._on_end(response.end, segment)
                        ended = True
        finally:
            call.cancel()  # no effect on a call that is done
        if not ended:
            raise PlimsollError("the stream ended without StreamEnd", grpc.StatusCode.INTERNAL)

    def _call(self, segment: Segment) -> aio.Call:
        # The broken request may still be known to the server for a moment.
        suffix = f"-r{self._resume_attempts}" if self._resume else ""
        request = stream_request(
            segment.prompt,
            segment.options,
            model=self._connection.model,
            request_id=self.request_id[: _MAX_REQUEST_ID_BYTES - len(suffix)] + suffix,
        )
        stub, metadata = self._connection.stub, self._connection.metadata
        timeout = self._deadline.remaining_seconds()
        if isinstance(request, pb.ChatStreamRequest):
            return stub.ChatStream(request, timeout=timeout, metadata=metadata)
        return stub.GenerateStream(request, timeout=timeout, metadata=metadata)

    def _on_start(self, start: Start, segment: Segment) -> None:
        if self._resume is None or self.start is None:
            self.start = start
        else:
            segment.check_start(start, self.start)
            self.resumptions += 1

    async def _on_delta(self, chunk: Chunk, segment: Segment) -> Chunk | None:
        chunk = segment.unseen(chunk)
        received = self._received.setdefault(chunk.index, Received())
        if received.finished:
            return None
        if self._resume is not None:
            if not (chunk.text or chunk.token_ids or chunk.finish_reason):
                return None
            self._resume.reset()  # the server is back
        received.record(chunk)
        return chunk

    def _on_end(self, end: pb.StreamEnd, segment: Segment) -> None:
        self.timings = Timings.from_proto(end.timings)
        self.usage = Usage.from_proto(end.usage)
        if self._resume is not None and self.start is not None:
            self.usage = segment.whole_usage(self.usage, self.start)
