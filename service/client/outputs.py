"""What comes back, as plain data."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from service.api.gen.plimsoll.v1 import common_pb2
from service.api.gen.plimsoll.v1 import inference_pb2 as pb


class FinishReason(enum.IntEnum):
    """Why one candidate ended; the numbers are those of `plimsoll.v1.FinishReason`."""

    EOS = 1
    STOP = 2
    MAX_TOKENS = 3
    CONTEXT_LENGTH = 4
    CANCELLED = 5
    TIME_LIMIT = 6
    EVICTED = 7

    @classmethod
    def from_proto(cls, number: int) -> FinishReason | None:
        """None while the candidate goes on."""
        return cls(number) if number else None

    @property
    def label(self) -> str:
        """For people and JSON: `max_tokens`."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its natural log probability and the most likely alternatives."""

    token_id: int
    token: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()

    @classmethod
    def from_proto(cls, message: pb.TokenLogprob) -> TokenLogprob:
        return cls(
            message.token_id,
            message.token,
            message.logprob,
            tuple(cls.from_proto(alternative) for alternative in message.top),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Token accounting of one request, all candidates summed."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int  # of the prompt, found in the prefix cache
    recomputed_tokens: int  # computed again after a preemption, or to resume a broken stream

    @classmethod
    def from_proto(cls, message: common_pb2.Usage) -> Usage:
        return cls(
            message.prompt_tokens,
            message.completion_tokens,
            message.cached_prompt_tokens,
            message.recomputed_tokens,
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, measured by the server."""

    queue_seconds: float
    prefill_seconds: float
    time_to_first_token_seconds: float
    decode_seconds: float
    preempted_seconds: float
    blocked_on_client_seconds: float
    preemption_count: int

    @classmethod
    def from_proto(cls, message: common_pb2.Timings) -> Timings:
        return cls(
            message.queue.ToTimedelta().total_seconds(),
            message.prefill.ToTimedelta().total_seconds(),
            message.time_to_first_token.ToTimedelta().total_seconds(),
            message.decode.ToTimedelta().total_seconds(),
            message.preempted.ToTimedelta().total_seconds(),
            message.blocked_on_client.ToTimedelta().total_seconds(),
            message.preemption_count,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """The request was admitted."""

    request_id: str
    model: str  # with version
    prompt_tokens: int
    cached_prompt_tokens: int
    effective_priority: int
    seed: int

    @classmethod
    def from_proto(cls, message: pb.StreamStart) -> Start:
        return cls(
            message.request_id,
            message.model,
            message.prompt_tokens,
            message.cached_prompt_tokens,
            message.effective_priority,
            message.seed,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Progress of one candidate since its last chunk; text is whole characters."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None  # set on the last chunk of the candidate
    matched_stop: str | int | None = None  # the stop string or stop token id that ended it


@dataclass(frozen=True, slots=True)
class Candidate:
    """One finished candidate."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    matched_stop: str | int | None

    @classmethod
    def from_proto(cls, message: pb.Candidate) -> Candidate:
        return cls(
            message.index,
            message.text,
            tuple(message.token_ids),
            tuple(TokenLogprob.from_proto(entry) for entry in message.logprobs),
            FinishReason(message.finish_reason),
            matched_stop(message.stop_match),
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer. The attributes of candidate 0 are at hand directly."""

    request_id: str
    model: str
    candidates: tuple[Candidate, ...]
    usage: Usage
    timings: Timings

    @classmethod
    def from_proto(cls, message: pb.GenerateResponse | pb.ChatResponse) -> Generation:
        return cls(
            message.request_id,
            message.model,
            tuple(Candidate.from_proto(candidate) for candidate in message.candidates),
            Usage.from_proto(message.usage),
            Timings.from_proto(message.timings),
        )

    @property
    def text(self) -> str:
        return self.candidates[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.candidates[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.candidates[0].finish_reason


@dataclass(frozen=True, slots=True)
class Tokenization:
    """Token ids of a text or a conversation."""

    token_ids: tuple[int, ...]
    max_context_tokens: int
    cached_prefix_tokens: int  # a hint: leading tokens that the prefix cache holds now


@dataclass(frozen=True, slots=True)
class AbortOutcome:
    """What became of the ids given to `abort`."""

    aborted_ids: tuple[str, ...]
    unknown_ids: tuple[str, ...]


def chunk_from_proto(message: pb.StreamDelta) -> Chunk:
    """One delta of a stream."""
    return Chunk(
        message.index,
        message.text,
        tuple(message.token_ids),
        tuple(TokenLogprob.from_proto(entry) for entry in message.logprobs),
        FinishReason.from_proto(message.finish_reason),
        matched_stop(message.stop_match),
    )


def matched_stop(message: common_pb2.StopMatch) -> str | int | None:
    """The string or the token id that ended a candidate, if one did."""
    match message.WhichOneof("match"):
        case "stop":
            return message.stop
        case "token_id":
            return message.token_id
        case _:
            return None


def joined(index: int, chunks: Iterable[Chunk]) -> Candidate:
    """Puts the chunks of one finished candidate together."""
    own = [chunk for chunk in chunks if chunk.index == index]
    reason = own[-1].finish_reason
    assert reason is not None, "only finished candidates are joined"
    return Candidate(
        index,
        "".join(chunk.text for chunk in own),
        tuple(token for chunk in own for token in chunk.token_ids),
        tuple(entry for chunk in own for entry in chunk.logprobs),
        reason,
        own[-1].matched_stop,
    )
