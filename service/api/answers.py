"""From the events of a request to protobuf messages, one function per message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from service.api.gen.plimsoll.v1 import common_pb2
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.engine.messages import SamplingParams, TokenLogprob
from service.front.events import Delta, Ended, Started
from service.front.state import ModelInfo

TokenBytes = Callable[[int], bytes]


@dataclass(slots=True)
class CandidateParts:
    """What one candidate has produced so far; the unary answer is the stream, joined."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: Delta | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.last = delta


class Answers:
    """Builds the messages of one request."""

    def __init__(
        self, request_id: str, model: ModelInfo, want_token_ids: bool, token_bytes: TokenBytes
    ) -> None:
        self._request_id = request_id
        self._model = versioned_name(model)
        self._want_token_ids = want_token_ids
        self._token_bytes = token_bytes

    def start(self, started: Started) -> pb.StreamStart:
        return pb.StreamStart(
            request_id=self._request_id,
            model=self._model,
            prompt_tokens=started.prompt_tokens,
            cached_prompt_tokens=started.cached_prompt_tokens,
            effective_priority=started.effective_priority,
            seed=started.seed,
            prompt_logprobs=self._logprobs(started.prompt_logprobs or ()),
        )

    def deltas(self, deltas: Sequence[Delta]) -> pb.StreamDeltas:
        return pb.StreamDeltas(deltas=[self._delta(delta) for delta in deltas])

    def candidate(self, index: int, parts: CandidateParts) -> pb.Candidate:
        last = parts.last
        return pb.Candidate(
            index=index,
            text="".join(parts.texts),
            token_ids=parts.token_ids if self._want_token_ids else (),
            logprobs=self._logprobs(parts.logprobs),
            finish_reason=_finish_reason(last),
            stop_match=_stop_match(last) if last else None,
        )

    def prompt_logprobs(self, started: Started) -> list[pb.TokenLogprob]:
        return self._logprobs(started.prompt_logprobs or ())

    def _delta(self, delta: Delta) -> pb.StreamDelta:
        return pb.StreamDelta(
            index=delta.index,
            text=delta.text,
            token_ids=delta.token_ids if self._want_token_ids else (),
            logprobs=self._logprobs(delta.logprobs),
            finish_reason=_finish_reason(delta),
            stop_match=_stop_match(delta),
        )

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> list[pb.TokenLogprob]:
        return [
            pb.TokenLogprob(
                token_id=entry.token_id,
                token=self._token_bytes(entry.token_id),
                logprob=entry.logprob,
                top=[
                    pb.TokenLogprob(
                        token_id=token_id, token=self._token_bytes(token_id), logprob=logprob
                    )
                    for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
                ],
            )
            for entry in entries
        ]


def versioned_name(model: ModelInfo) -> str:
    """Name and digest, as answers carry them."""
    return f"{model.name}@{model.version}"


def stream_end(ended: Ended) -> pb.StreamEnd:
    usage, timings = ended.usage, ended.timings
    return pb.StreamEnd(
        usage=common_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
            recomputed_tokens=usage.recomputed_tokens,
        ),
        timings=common_pb2.Timings(
            queue=duration(timings.queue_seconds),
            prefill=duration(timings.prefill_seconds),
            time_to_first_token=duration(timings.time_to_first_token_seconds),
            decode=duration(timings.decode_seconds),
            preempted=duration(timings.preempted_seconds),
            blocked_on_client=duration(timings.blocked_on_client_seconds),
            preemption_count=timings.preemption_count,
        ),
    )


def sampling_message(sampling: SamplingParams) -> pb.SamplingParams:
    """What an unset field means; a seed and a bias have no default."""
    return pb.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        candidate_count=1,
    )


def duration(seconds: float) -> Duration:
    """Microsecond resolution; finer digits of a clock reading mean nothing."""
    message = Duration()
    message.FromMicroseconds(round(seconds * 1e6))
    return message


def _finish_reason(delta: Delta | None) -> common_pb2.FinishReason.ValueType:
    if delta is None or delta.finish_reason is None:
        return common_pb2.FINISH_REASON_UNSPECIFIED
    # The numbers of the two enums are the same; a test compares them name by name.
    return common_pb2.FinishReason.ValueType(delta.finish_reason)


def _stop_match(delta: Delta) -> common_pb2.StopMatch | None:
    if delta.stop is not None:
        return common_pb2.StopMatch(stop=delta.stop)
    if delta.stop_token_id is not None:
        return common_pb2.StopMatch(token_id=delta.stop_token_id)
    return None
