"""What a caller can ask for, and its wire form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from service.api.gen.plimsoll.v1 import inference_pb2 as pb

_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "candidate_count",
)
_UNSIGNED_BITS = {
    "max_tokens": 32,
    "min_tokens": 32,
    "top_k": 32,
    "seed": 64,
    "candidate_count": 32,
    "logprobs": 32,
    "stream_interval_tokens": 32,
    "truncate_prompt_tokens": 32,
}


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How to generate. None leaves the choice to the server (the model's own default).

    The server checks the ranges; a refused field comes back in `PlimsollError.violations`.

    Raises:
        ValueError: a number does not fit its field on the wire; names field, value, limit.
        TypeError: `stop` is one string instead of a tuple of strings.
    """

    max_tokens: int | None = None  # per candidate; None: up to the context
    min_tokens: int = 0
    temperature: float | None = None  # 0 is greedy
    top_p: float | None = None
    top_k: int | None = None  # 0 switches it off
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    candidate_count: int | None = None  # 1 when None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False  # only where the server allows benchmarking options
    time_limit_seconds: float | None = None  # then the text so far, without an error
    logprobs: int | None = None  # alternatives per token; None: none at all
    skip_text: bool = False
    keep_special_tokens: bool = False
    stream_interval_tokens: int = 0  # 0 and 1: a message per token
    priority: int = 0  # higher runs first
    truncate_prompt_tokens: int = 0  # 0: a prompt that is too long is refused
    cache_salt: str = ""
    skip_cache_lookup: bool = False
    skip_cache_insert: bool = False

    def __post_init__(self) -> None:
        stop: object = self.stop
        if isinstance(stop, str):  # iterating it would give one-letter stops
            raise TypeError(f"stop: {stop!r} is a string; give a tuple of strings")
        for name, bits in _UNSIGNED_BITS.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**bits:
                raise ValueError(f"{name}: {value} is not in [0, 2^{bits})")
        if not -(2**31) <= self.priority < 2**31:
            raise ValueError(f"priority: {self.priority} is not in [-2^31, 2^31)")

    def replace(self, **changes: Any) -> GenerationOptions:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_proto(self) -> pb.GenerationOptions:
        """The wire form. Token ids are always asked for: a broken stream resumes from them."""
        sampling = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        stopping = pb.StopConditions(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop=self.include_stop,
            ignore_eos=self.ignore_eos,
        )
        if self.time_limit_seconds is not None:
            stopping.time_limit.FromTimedelta(timedelta(seconds=self.time_limit_seconds))
        return pb.GenerationOptions(
            sampling=pb.SamplingParams(logit_bias=self.logit_bias, **sampling),
            stopping=stopping,
            output=pb.OutputOptions(
                token_ids=True,
                logprobs=self.logprobs,
                skip_text=self.skip_text,
                stream_interval_tokens=self.stream_interval_tokens,
                keep_special_tokens=self.keep_special_tokens,
            ),
            cache=pb.CacheOptions(
                salt=self.cache_salt,
                skip_lookup=self.skip_cache_lookup,
                skip_insert=self.skip_cache_insert,
            ),
            priority=self.priority,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
        )
