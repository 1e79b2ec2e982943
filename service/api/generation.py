"""The common path of Generate, GenerateStream, Chat and ChatStream.

`_open` turns a request into a running one; `stream` and `unary` hand out the same events. The
four methods differ in message types alone.
"""

from __future__ import annotations

import secrets
import time
from typing import TypeVar

from service.api import answers
from service.api.answers import Answers, CandidateParts
from service.api.dispatch import Call, ClientGone
from service.api.errors import REQUEST_ID_KEY, ModelNotFound
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.prompts import GeneratingRequest, PromptReader, continues_text
from service.api.validation import (
    ServingLimits,
    check_options,
    check_prompt_logprobs,
)
from service.config import ServeSettings
from service.front.call import GenerationCall
from service.front.events import DeadlinePassed, Draining, Ended, Event, NotReady, Progress, Started
from service.front.front import Front
from service.front.handle import RequestHandle
from service.front.state import FrontState, ModelInfo

VERSION_KEY = "x-model-version"
SERVED_BY_KEY = "x-served-by"
QUEUE_KEY = "x-queue-ms"
UTILIZATION_KEY = "x-kv-utilization"

_StreamAnswer = TypeVar("_StreamAnswer", pb.GenerateStreamResponse, pb.ChatStreamResponse)
_Answer = TypeVar("_Answer", pb.GenerateResponse, pb.ChatResponse)


def served_model(front: Front, name: str) -> ModelInfo:
    """The model a request names; raises NotReady, ModelNotFound."""
    if front.model is None:
        raise NotReady
    if name not in ("", front.model.name):
        raise ModelNotFound(name, front.model.name)
    return front.model


class Generation:
    """Runs requests and writes their answers."""

    def __init__(self, front: Front, settings: ServeSettings, served_by: str) -> None:
        """`served_by` tells clients behind a load balancer which replica answered."""
        self._front = front
        self._settings = settings
        self._served_by = served_by
        self._prompts = PromptReader(front, settings.max_chat_messages)

    async def stream(
        self, request: GeneratingRequest, call: Call, answer_type: type[_StreamAnswer]
    ) -> None:
        """Writes `start deltas* end`; returns only after `end`.

        Raises RequestError and ApiError.
        """
        handle, model, build = await self._open(request, call)
        event: Event | None = None
        limit_seconds = self._settings.slow_reader_seconds
        async for event in handle:
            match event:
                case Started():
                    # Headers end the transparent retries of a client, so they come no earlier.
                    await self._send_headers(call, model)
                    answer = answer_type(start=build.start(event))
                case Progress():
                    answer = answer_type(deltas=build.deltas(event.deltas))
                case Ended():
                    self._set_trailers(call, event)
                    answer = answer_type(end=answers.stream_end(event))
            await call.write(answer, limit_seconds)
        _require_end(event, call)

    async def unary(
        self, request: GeneratingRequest, call: Call, answer_type: type[_Answer]
    ) -> _Answer:
        """Joins the same events into one message. Raises RequestError and ApiError."""
        handle, model, build = await self._open(request, call)
        event: Event | None = None
        answer = answer_type(request_id=call.request_id, model=answers.versioned_name(model))
        parts: dict[int, CandidateParts] = {}
        async for event in handle:
            match event:
                case Started():
                    answer.prompt_logprobs.extend(build.prompt_logprobs(event))
                case Progress():
                    for delta in event.deltas:
                        parts.setdefault(delta.index, CandidateParts()).add(delta)
                case Ended():
                    end = answers.stream_end(event)
                    answer.usage.CopyFrom(end.usage)
                    answer.timings.CopyFrom(end.timings)
                    self._set_trailers(call, event)
        _require_end(event, call)
        answer.candidates.extend(build.candidate(index, parts[index]) for index in sorted(parts))
        await self._send_headers(call, model)
        return answer

    async def _open(
        self, request: GeneratingRequest, call: Call
    ) -> tuple[RequestHandle, ModelInfo, Answers]:
        """Checks, tokenizes and admits; from here on the end of the call closes the handle."""
        if self._front.state is FrontState.DRAINING:
            raise Draining  # before work is put into tokenizing
        model = served_model(self._front, request.model)
        limits = ServingLimits(
            vocab_size=model.vocab_size,
            max_context_tokens=model.max_context_tokens,
            default_sampling=model.default_sampling,
            max_candidates=self._settings.max_candidates,
            allow_ignore_eos=self._settings.allow_ignore_eos,
        )
        options = check_options(request.options, limits, fallback_seed=secrets.randbits(64))
        prompt_ids = await self._prompts.prompt(request, options, limits)
        check_prompt_logprobs(len(prompt_ids), options)
        if call.deadline_seconds is not None and time.monotonic() >= call.deadline_seconds:
            raise DeadlinePassed  # gRPC may notice it later than we do
        handle = await self._front.generate(
            GenerationCall(
                request_id=call.request_id,
                arrival_seconds=call.arrival_seconds,
                tenant=call.tenant,
                prompt_ids=prompt_ids,
                sampling=options.sampling,
                candidate_count=options.candidate_count,
                max_tokens=options.max_tokens,
                min_tokens=options.min_tokens,
                stop=options.stop,
                stop_ids=options.stop_ids,
                include_stop=options.include_stop,
                ignore_eos=options.ignore_eos,
                time_limit_seconds=options.time_limit_seconds,
                deadline_seconds=call.deadline_seconds,
                priority=options.priority,
                salt=options.salt,
                skip_lookup=options.skip_lookup,
                skip_insert=options.skip_insert,
                want_token_ids=options.want_token_ids,
                skip_text=options.skip_text,
                keep_special_tokens=options.keep_special_tokens,
                continues_text=continues_text(request),
                is_chat=isinstance(request, pb.ChatRequest | pb.ChatStreamRequest),
                stream_interval_tokens=options.stream_interval_tokens,
                trace=call.trace,
            )
        )
        call.on_done(handle.close)
        build = Answers(
            call.request_id, model, options.want_token_ids, self._front.tokenizer.token_bytes
        )
        return handle, model, build

    async def _send_headers(self, call: Call, model: ModelInfo) -> None:
        await call.send_initial_metadata(
            (
                (REQUEST_ID_KEY, call.request_id),
                (VERSION_KEY, model.version),
                (SERVED_BY_KEY, self._served_by),
            )
        )

    def _set_trailers(self, call: Call, ended: Ended) -> None:
        queue_ms = round(ended.timings.queue_seconds * 1000)
        trailers = [(QUEUE_KEY, str(queue_ms))]
        if engine := self._front.stats().engine:
            trailers.append((UTILIZATION_KEY, f"{engine.held_share:.4f}"))
        call.context.set_trailing_metadata(tuple(trailers))


def _require_end(last: Event | None, call: Call) -> None:
    """Events may stop without Ended only because the end of the call has closed the handle."""
    if isinstance(last, Ended):
        return
    if call.finished:
        raise ClientGone
    raise AssertionError(f"the events of {call.request_id} stopped without Ended, after {last!r}")
