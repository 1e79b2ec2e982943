"""What a request tells its handler, and the ways it can go wrong.

The API layers (gRPC today, others later) see requests only through these types.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.engine.messages import FinishReason, TokenLogprob


@dataclass(slots=True)
class Started:
    """The request entered the batch."""

    prompt_tokens: int
    cached_prompt_tokens: int
    seed: int
    effective_priority: int
    prompt_logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class Delta:
    """Progress of one candidate since the last Delta of it."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None  # set on the last Delta of the candidate
    stop: str | None = None  # the stop string that matched
    stop_token_id: int | None = None


@dataclass(slots=True)
class Progress:
    """Merged deltas, at most one per candidate."""

    deltas: list[Delta]


@dataclass(slots=True)
class Usage:
    """Token accounting of a whole request, all candidates summed."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    recomputed_tokens: int


@dataclass(slots=True)
class Timings:
    """Where the time went, in seconds."""

    queue_seconds: float
    prefill_seconds: float
    time_to_first_token_seconds: float
    decode_seconds: float
    preempted_seconds: float
    blocked_on_client_seconds: float
    preemption_count: int


@dataclass(slots=True)
class Ended:
    """Every candidate has its finish reason; nothing follows."""

    usage: Usage
    timings: Timings


Event = Started | Progress | Ended


class RequestError(Exception):
    """A request that ends without `Ended`. Subclasses carry the facts."""


@dataclass(slots=True)
class Draining(RequestError):
    """The pod is going down or being emptied; another replica can take the request."""


@dataclass(slots=True)
class NotReady(RequestError):
    """The engine is starting (or starting again) and the request was not admitted."""


@dataclass(slots=True)
class QueueFull(RequestError):
    """The bounded queue is full."""

    waiting: int
    limit: int
    retry_after_seconds: float


@dataclass(slots=True)
class DeadlineUnreachable(RequestError):
    """The request would not be done by its deadline; nothing was sent of it."""

    forecast_seconds: float  # from now to its end
    remaining_seconds: float  # to its deadline
    retry_after_seconds: float


@dataclass(slots=True)
class ExceedsCapacity(RequestError):
    """The prompt can never fit the present pool."""

    prompt_tokens: int
    needed_blocks: int
    total_blocks: int
    limit_tokens: int


@dataclass(slots=True)
class DuplicateRequestId(RequestError):
    """A live request has this id."""

    request_id: str


@dataclass(slots=True)
class DeadlinePassed(RequestError):
    """The deadline of the call is over: nobody waits for an answer any more."""


@dataclass(slots=True)
class SlowReader(RequestError):
    """The client did not read for too long and was cut."""

    unsent_tokens: int
    limit_seconds: float


@dataclass(slots=True)
class EngineLost(RequestError):
    """The engine died and the request could not be carried over."""

    tokens_sent: int


@dataclass(slots=True)
class EngineCrashedByRequest(RequestError):
    """The request killed each engine that computed it, and is not computed again."""

    engine_deaths: int
    tokens_sent: int


@dataclass(slots=True)
class ModelFailed(RequestError):
    """The model could not compute a token of this request; other requests are not touched."""


@dataclass(slots=True)
class DeviceExhausted(RequestError):
    """The device has no memory for a step of this request, not even alone."""

    wanted_bytes: int
    free_bytes: int
    total_bytes: int
    tokens_sent: int
    retry_after_seconds: float


@dataclass(slots=True)
class AbortedByAdmin(RequestError):
    """Ended through AbortRequests."""

    reason: str
