"""From the options of a request to resolved parameters, or to the list of what is wrong.

Pure: no I/O, no clock, no random numbers. The limits are those in the comments of
`inference.proto`; they are part of the contract, so they are constants and no settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from service.api.checks import Checks, seconds_of
from service.api.errors import ContextLengthExceeded, FeatureDisabled
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.engine.messages import SamplingParams

MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_STOP_IDS = 64
MAX_LOGIT_BIASES = 1024
MAX_LOGPROBS = 20
MAX_PROMPT_LOGPROB_ENTRIES = 65536
MAX_STREAM_INTERVAL_TOKENS = 1024
MAX_SALT_BYTES = 128
MAX_TIME_LIMIT_SECONDS = 86400.0
# Dividing logits by less than this leaves nothing but the most likely token, up to overflow.
GREEDY_BELOW_TEMPERATURE = 0.001

_SCALARS = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
]
_CLOSED_RANGES = {
    "temperature": (0.0, 2.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.009999999776482582, 2.0),  # 0.01 as the float32 of the wire
}


@dataclass(slots=True, frozen=True)
class ServingLimits:
    """What the served model and the settings of the server allow."""

    vocab_size: int
    max_context_tokens: int
    default_sampling: SamplingParams
    max_candidates: int = 16
    allow_ignore_eos: bool = False


@dataclass(slots=True, frozen=True)
class CheckedOptions:
    """GenerationOptions with every default resolved and every limit kept."""

    sampling: SamplingParams
    candidate_count: int
    max_tokens: int | None  # None: up to the context
    min_tokens: int
    stop: tuple[str, ...]
    stop_ids: tuple[int, ...]
    include_stop: bool
    ignore_eos: bool
    time_limit_seconds: float | None
    priority: int
    truncate_prompt_tokens: int  # 0: never
    salt: str
    skip_lookup: bool
    skip_insert: bool
    want_token_ids: bool
    skip_text: bool
    keep_special_tokens: bool
    stream_interval_tokens: int


def check_options(
    options: pb.GenerationOptions, limits: ServingLimits, fallback_seed: int
) -> CheckedOptions:
    """Checks everything that does not need the prompt.

    `fallback_seed` is used when the client gave none. Raises FeatureDisabled, InvalidRequest.
    """
    _refuse_disabled(options, limits)
    checks = Checks("options.")
    sampling = _check_sampling(options.sampling, limits, fallback_seed, checks.under("sampling"))
    logprobs = _check_output(options.output, checks.under("output"))
    candidate_count = 1
    if options.sampling.HasField("candidate_count"):
        candidate_count = options.sampling.candidate_count
        checks.in_range("sampling.candidate_count", candidate_count, 1, limits.max_candidates)
    time_limit_seconds = _check_stopping(options.stopping, limits, checks.under("stopping"))
    checks.at_most_bytes("cache.salt", options.cache.salt, MAX_SALT_BYTES)
    checks.in_range("priority", options.priority, -100, 100)
    checks.finish()
    stopping, output, cache = options.stopping, options.output, options.cache
    return CheckedOptions(
        sampling=msgspec.structs.replace(sampling, **logprobs),
        candidate_count=candidate_count,
        max_tokens=stopping.max_tokens if stopping.HasField("max_tokens") else None,
        min_tokens=stopping.min_tokens,
        stop=tuple(stopping.stop),
        stop_ids=tuple(stopping.stop_token_ids),
        include_stop=stopping.include_stop,
        ignore_eos=stopping.ignore_eos,
        time_limit_seconds=time_limit_seconds,
        priority=options.priority,
        truncate_prompt_tokens=options.truncate_prompt_tokens,
        salt=cache.salt,
        # A cached prefix is not computed, so it has no logprobs.
        skip_lookup=cache.skip_lookup or output.HasField("prompt_logprobs"),
        skip_insert=cache.skip_insert,
        want_token_ids=output.token_ids,
        skip_text=output.skip_text,
        keep_special_tokens=output.keep_special_tokens,
        stream_interval_tokens=max(1, output.stream_interval_tokens),
    )


def take_prompt_ids(
    ids: Sequence[int], options: CheckedOptions, limits: ServingLimits
) -> list[int]:
    """The last `truncate_prompt_tokens` of the prompt, or all; at most the context is copied.

    Raises ContextLengthExceeded when prompt and output cannot fit.
    """
    kept = min(len(ids), options.truncate_prompt_tokens or len(ids))
    _check_context(kept, options, limits)
    return list(ids[len(ids) - kept :])


def check_prompt_ids(ids: Sequence[int], path: str, limits: ServingLimits) -> None:
    """Raises InvalidRequest for an empty prompt or an id outside of the vocabulary."""
    checks = Checks()
    if len(ids) == 0:
        checks.refuse(path, "", "must have at least one token")
    checks.token_ids(path, ids, limits.vocab_size)
    checks.finish()


def check_prompt_logprobs(prompt_tokens: int, options: CheckedOptions) -> None:
    """Raises InvalidRequest when the prompt logprobs would make too large a message."""
    alternatives = options.sampling.prompt_logprobs
    if alternatives is None:
        return
    entries = prompt_tokens * (alternatives + 1)
    checks = Checks()
    if entries > MAX_PROMPT_LOGPROB_ENTRIES:
        fitting = MAX_PROMPT_LOGPROB_ENTRIES // prompt_tokens - 1
        limit = f"must be at most {fitting}" if fitting >= 0 else "must be unset"
        checks.refuse(
            "options.output.prompt_logprobs",
            alternatives,
            f"{limit} for a prompt of {prompt_tokens} tokens",
        )
    checks.finish()


def _check_context(prompt_tokens: int, options: CheckedOptions, limits: ServingLimits) -> None:
    min_tokens = max(1, options.min_tokens)
    if prompt_tokens + min_tokens > limits.max_context_tokens:
        raise ContextLengthExceeded(prompt_tokens, min_tokens, limits.max_context_tokens)


def _refuse_disabled(options: pb.GenerationOptions, limits: ServingLimits) -> None:
    if kind := options.constraint.WhichOneof("constraint"):
        raise FeatureDisabled(f"options.constraint.{kind}")
    if options.stopping.ignore_eos and not limits.allow_ignore_eos:
        raise FeatureDisabled("options.stopping.ignore_eos")


def _check_sampling(
    sampling: pb.SamplingParams, limits: ServingLimits, fallback_seed: int, checks: Checks
) -> SamplingParams:
    """Fields that are not set take the default of the model, which is not the client's fault."""
    given = {f.name: value for f, value in sampling.ListFields() if f.name in _SCALARS}
    for name, value in given.items():
        if name in _CLOSED_RANGES:
            checks.in_range(name, value, *_CLOSED_RANGES[name])
    if "top_p" in given:
        checks.above_in_range("top_p", given["top_p"], 0, 1)
    logit_bias: dict[int, float] = {}
    if checks.count("logit_bias", sampling.logit_bias, 0, MAX_LOGIT_BIASES):
        logit_bias = dict(sampling.logit_bias)
        for token_id, bias in logit_bias.items():
            if token_id >= limits.vocab_size:
                limit = f"must be a token id below the vocabulary size {limits.vocab_size}"
                checks.refuse("logit_bias.key", token_id, limit)
            checks.in_range(f"logit_bias[{token_id}]", bias, -100, 100)
    resolved = msgspec.structs.replace(
        limits.default_sampling, **{"seed": fallback_seed, **given}, logit_bias=logit_bias
    )
    if resolved.temperature < GREEDY_BELOW_TEMPERATURE:
        return msgspec.structs.replace(resolved, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    if resolved.top_k >= limits.vocab_size:
        return msgspec.structs.replace(resolved, top_k=0)
    return resolved


def _check_stopping(
    stopping: pb.StopConditions, limits: ServingLimits, checks: Checks
) -> float | None:
    """Returns the time limit in seconds."""
    if stopping.HasField("max_tokens"):
        if stopping.max_tokens == 0:
            checks.refuse("max_tokens", 0, "must be at least 1")
        elif stopping.min_tokens > stopping.max_tokens:
            limit = f"must be at most max_tokens, {stopping.max_tokens}"
            checks.refuse("min_tokens", stopping.min_tokens, limit)
    if checks.count("stop", stopping.stop, 0, MAX_STOPS):
        for index, stop in enumerate(stopping.stop):
            if not stop:
                checks.refuse(f"stop[{index}]", stop, "must not be empty")
            checks.at_most_bytes(f"stop[{index}]", stop, MAX_STOP_BYTES)
    if checks.count("stop_token_ids", stopping.stop_token_ids, 0, MAX_STOP_IDS):
        checks.token_ids("stop_token_ids", stopping.stop_token_ids, limits.vocab_size)
    if not stopping.HasField("time_limit"):
        return None
    seconds = seconds_of(stopping.time_limit)
    checks.above_in_range("time_limit", seconds, 0, MAX_TIME_LIMIT_SECONDS, "seconds")
    return seconds


def _check_output(output: pb.OutputOptions, checks: Checks) -> dict[str, int | None]:
    """Returns the logprob fields of SamplingParams; None means no logprobs."""
    wanted: dict[str, int | None] = {}
    for name in ("logprobs", "prompt_logprobs"):
        wanted[name] = getattr(output, name) if output.HasField(name) else None
        checks.in_range(name, wanted[name] or 0, 0, MAX_LOGPROBS)
    checks.in_range(
        "stream_interval_tokens", output.stream_interval_tokens, 0, MAX_STREAM_INTERVAL_TOKENS
    )
    return wanted
