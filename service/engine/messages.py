"""What the front and the engine say to each other.

Both sides run on one machine and one build, so the wire format is msgspec's
MessagePack with positional arrays: compact, typed on decode, and unable to carry
code. Times are `time.monotonic()` seconds, a clock that Linux shares between
processes.

One candidate of a client's request is one *sequence* here. The front expands
n candidates into n sequences; the prefix cache makes their prompt cost one prefill.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from service.engine.figures import EngineStats, Incident, PreemptionMode, PreemptionReason
from service.faults.plan import Fault


class FinishReason(enum.IntEnum):
    """Why a sequence ended; the numbers are those of `plimsoll.v1.FinishReason`."""

    EOS = 1
    STOP = 2
    MAX_TOKENS = 3
    CONTEXT_LENGTH = 4
    CANCELLED = 5
    TIME_LIMIT = 6
    EVICTED = 7


class SamplingParams(msgspec.Struct, array_like=True, frozen=True):
    """How the next token is chosen. Every field is resolved: no value means "default" here."""

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output tokens
    presence_penalty: float = 0.0  # over output tokens
    frequency_penalty: float = 0.0  # over output tokens
    logit_bias: dict[int, float] = {}
    seed: int = 0  # with the index of the token it decides the random number, nothing else does
    logprobs: int | None = None  # alternatives per token; None: no logprobs at all
    prompt_logprobs: int | None = None


class SequenceSpec(msgspec.Struct, array_like=True, frozen=True):
    """All the engine needs to start a sequence, or to go on with one.

    `output_ids` is empty for a new sequence. After an engine death the front sends the
    ids that it has already received: the engine computes them again as a prefix and goes
    on with token number `len(output_ids)`.
    """

    sequence_id: int  # unique in the life of the front
    prompt_ids: list[int]
    output_ids: list[int]
    sampling: SamplingParams
    max_tokens: int  # bound on len(output), output_ids counted; the front has resolved it
    min_tokens: int = 0
    eos_ids: tuple[int, ...] = ()  # empty when the client ignores EOS
    stop_ids: tuple[int, ...] = ()
    priority: int = 0  # higher first
    namespace: bytes = b""  # cache namespace: only equal ones share blocks
    use_prefix_cache: bool = True
    publish_blocks: bool = True
    arrival_seconds: float = 0.0  # monotonic, when the call reached the front
    resumed: bool = False  # resubmitted after an engine death
    tenant: str = ""  # on whose share of the KV pool it lives
    expected_tokens: int = 0  # of output, as the front has seen it; a guess, no bound


# --- front -> engine ---------------------------------------------------------


class Submit(msgspec.Struct, array_like=True, tag="submit", frozen=True):
    """Starts sequences; all candidates of one request come in one message."""

    sequences: list[SequenceSpec]


class Abort(msgspec.Struct, array_like=True, tag="abort", frozen=True):
    """Ends sequences at the next step boundary. Unknown or ended ids are no error."""

    sequence_ids: list[int]


class Flush(msgspec.Struct, array_like=True, tag="flush", frozen=True):
    """Drops cached blocks that nobody holds; None: of every namespace."""

    call_id: int
    namespace: bytes | None


class Lookup(msgspec.Struct, array_like=True, tag="lookup", frozen=True):
    """Asks how many leading tokens the cache holds."""

    call_id: int
    namespace: bytes
    token_ids: list[int]


class ShrinkPolicy(enum.IntEnum):
    """What happens to running sequences that hold more than a smaller pool has.

    The numbers are those of `plimsoll.v1.ShrinkPolicy`.
    """

    WAIT = 1  # they run on until enough of them have ended
    PREEMPT = 2  # some lose their blocks, wait, and are computed again later


class Resize(msgspec.Struct, array_like=True, tag="resize", frozen=True):
    """Asks for a pool of another size; more than the engine reserved means all of that.

    A resize that is under way ends with what is in force.
    """

    call_id: int
    num_blocks: int  # usable blocks, the null block left out
    policy: ShrinkPolicy
    limit_seconds: float  # after this the answer comes, whatever is in force


class OrderedFault(msgspec.Struct, array_like=True, frozen=True):
    """A fault that the front has numbered and counts for."""

    fault_id: int
    began_seconds: float  # monotonic, when the server got the plan
    fault: Fault  # of a strike: with the count that is left


class Inject(msgspec.Struct, array_like=True, tag="inject", frozen=True):
    """Makes things go wrong; replaces all faults that were ordered before."""

    faults: list[OrderedFault]


class Shutdown(msgspec.Struct, array_like=True, tag="shutdown", frozen=True):
    """Asks the engine to leave its loop and exit with status 0."""


ToEngine: TypeAlias = Submit | Abort | Flush | Lookup | Resize | Inject | Shutdown


# --- engine -> front ---------------------------------------------------------


class Loading(msgspec.Struct, array_like=True, tag="loading", frozen=True):
    """Progress of the start; `total` is 0 while it is not known."""

    stage: str  # "import", "kv pool", "weights", "warm-up"
    done: int
    total: int
    unit: str  # "modules", "blocks", "layers", "tokens"


class StartFailed(msgspec.Struct, array_like=True, tag="start_failed", frozen=True):
    """The engine cannot serve this model or these settings; it exits after this message."""

    message: str


class Predecessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a new engine takes over from the one that it replaces: how large it was.

    A neighbour may have the memory of a dead engine before the next one has started. Sized by what
    is left then, that one could serve less than was promised to the streams that go on in it, and
    would stay as small when the neighbour has left. So it takes the sizes over, and begins with as
    much of the pool as there is room for. Blocks are usable ones, the null block left out.
    """

    blocks: int  # that the pool had at the start, or that were ordered since
    max_blocks: int  # that the pool could grow to
    context_tokens: int  # the longest that was served, prompt and output together


class Ready(msgspec.Struct, array_like=True, tag="ready", frozen=True):
    """The engine made a real token with the loaded model and now takes sequences."""

    model_version: str  # digest of weights and configuration
    vocab_size: int
    max_context_tokens: int
    block_tokens: int
    num_blocks: int  # usable blocks, the null block left out
    max_blocks: int  # what the pool can grow to, counted like `num_blocks`
    bytes_per_block: int
    weights_dtype: str
    kv_dtype: str
    device: str
    attention_backend: str
    load_seconds: float


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True):
    """The logprob of one token, and of the most likely alternatives at its position."""

    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


class Started(msgspec.Struct, array_like=True, frozen=True):
    """A sequence entered the batch for the first time in this engine."""

    sequence_id: int
    cached_tokens: int  # of the prompt, found in the prefix cache
    scheduled_seconds: float


class Prefilled(msgspec.Struct, array_like=True, frozen=True):
    """A chunk of a prompt, or of what was lost, was computed."""

    sequence_id: int
    tokens: int
    ended_seconds: float


class Preempted(msgspec.Struct, array_like=True, tag="preempted", frozen=True):
    """A sequence lost blocks and waits to come back."""

    sequence_id: int
    mode: PreemptionMode
    reason: PreemptionReason
    lost_tokens: int  # whose K and V it has no more, but what a cache may keep of them
    at_seconds: float


class Readmitted(msgspec.Struct, array_like=True, tag="readmitted", frozen=True):
    """A preempted sequence is in the batch again."""

    sequence_id: int
    cached_tokens: int  # that need not be computed again
    at_seconds: float


class Output(msgspec.Struct, array_like=True, frozen=True):
    """New tokens of one sequence."""

    sequence_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    # Complete, one per prompt token but the first; sent once, with the first token.
    prompt_logprobs: list[TokenLogprob] | None = None


class Finished(msgspec.Struct, array_like=True, frozen=True):
    """A sequence ended by itself or by Abort; comes after its last Output, exactly once."""

    sequence_id: int
    reason: FinishReason
    stop_token_id: int | None  # set when a stop or EOS id matched; that id is in the output
    recomputed_tokens: int  # computed again after preemptions
    preemptions: int
    preempted_seconds: float


class Refused(msgspec.Struct, array_like=True, frozen=True):
    """A sequence that can never run in the present pool (admission said NeverFits)."""

    sequence_id: int
    needed_blocks: int
    total_blocks: int
    limit_tokens: int


class Failed(msgspec.Struct, array_like=True, frozen=True):
    """A sequence that the model cannot go on with; the others are not touched."""

    sequence_id: int
    cause: str  # for the log, not for clients


class Exhausted(msgspec.Struct, array_like=True, frozen=True):
    """A sequence for which the device has no memory, not even alone; the others go on."""

    sequence_id: int
    wanted_bytes: int
    free_bytes: int
    total_bytes: int


class StepReport(msgspec.Struct, array_like=True, tag="step", frozen=True):
    """All that one step produced: one message per step, whatever the batch size."""

    started: list[Started]
    outputs: list[Output]
    finished: list[Finished]
    refused: list[Refused]
    stats: EngineStats
    failed: list[Failed] = []
    exhausted: list[Exhausted] = []
    prefilled: list[Prefilled] = []
    moves: list[Preempted | Readmitted] = []  # since the last report, in their order


class Heartbeat(msgspec.Struct, array_like=True, tag="heartbeat", frozen=True):
    """Sent about once a second by an idle engine, so that silence means frozen."""

    stats: EngineStats


class Flushed(msgspec.Struct, array_like=True, tag="flushed", frozen=True):
    """Answer to Flush."""

    call_id: int
    dropped_blocks: int
    kept_blocks: int


class LookedUp(msgspec.Struct, array_like=True, tag="looked_up", frozen=True):
    """Answer to Lookup."""

    call_id: int
    cached_tokens: int


class MemoryShortage(msgspec.Struct, array_like=True, frozen=True):
    """Why a pool could not grow: wanted + headroom is more than is available, in bytes."""

    wanted_bytes: int
    available_bytes: int
    headroom_bytes: int  # left to the steps of the model


class Resized(msgspec.Struct, array_like=True, tag="resized", frozen=True):
    """Answer to Resize, when it is in force or over; the figures of a report come first."""

    call_id: int
    before_blocks: int  # usable blocks
    num_blocks: int  # in force now; not what was asked for when time or memory ran out
    ceiling_blocks: int  # that a pool which others' memory holds back grows to by itself
    preempted: int  # sequences that lost their blocks for it
    elapsed_seconds: float
    shortage: MemoryShortage | None


class IncidentReport(msgspec.Struct, array_like=True, tag="incident", frozen=True):
    """Sent at once, before anything is done about it."""

    incident: Incident


class FaultFired(msgspec.Struct, array_like=True, tag="fault_fired", frozen=True):
    """A strike was carried out once; sent before it is, since the engine may not outlive it."""

    fault_id: int


FromEngine: TypeAlias = (
    Loading
    | StartFailed
    | Ready
    | StepReport
    | Heartbeat
    | Flushed
    | LookedUp
    | Resized
    | IncidentReport
    | FaultFired
)
