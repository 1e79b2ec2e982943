"""What a request asks for, after the API layer has checked and resolved every field."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import msgspec

from service.engine.messages import SamplingParams, SequenceSpec
from service.front.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class EndOfTime:
    """When a request ends at the latest."""

    seconds: float  # monotonic; infinite: never
    is_deadline: bool  # nobody waits for an answer then; else the text so far is the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """One request. Its prompt fits the context and its options are within their limits."""

    request_id: str  # unique among the live requests of the tenant
    prompt_ids: list[int]
    sampling: SamplingParams  # its seed is that of candidate 0
    tenant: str = ""
    arrival_seconds: float | None = None  # monotonic; None: when `Front.generate` is called
    candidate_count: int = 1
    max_tokens: int | None = None  # per candidate; None: up to the context
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    time_limit_seconds: float | None = None  # from the arrival
    deadline_seconds: float | None = None  # monotonic time at which nobody waits any more
    priority: int = 0  # higher first
    salt: str = ""
    skip_lookup: bool = False
    skip_insert: bool = False
    want_token_ids: bool = False
    skip_text: bool = False
    keep_special_tokens: bool = False
    continues_text: bool = False  # the output goes on where the prompt ends, a space included
    stream_interval_tokens: int = 1
    is_chat: bool = False  # the prompt was made of a conversation
    trace: TraceContext | None = None  # None: nobody traces

    def end_of_time(self, arrival_seconds: float) -> EndOfTime:
        """What ends the request if nothing else does, of deadline and time limit the first."""
        deadline_seconds = math.inf if self.deadline_seconds is None else self.deadline_seconds
        if self.time_limit_seconds is not None:
            limit_seconds = arrival_seconds + self.time_limit_seconds
            if limit_seconds < deadline_seconds:
                return EndOfTime(limit_seconds, is_deadline=False)
        return EndOfTime(deadline_seconds, is_deadline=True)


def candidate_seed(seed: int, index: int) -> int:
    """The seed of one candidate: the request's own for the first, derived for the others."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + index.to_bytes(4, "little"))
    return int.from_bytes(digest.digest()[:8], "little")


def sequence_specs(
    call: GenerationCall,
    sequence_ids: range,
    *,
    max_tokens: int,
    expected_tokens: int,
    eos_ids: tuple[int, ...],
    namespace: bytes,
    arrival_seconds: float,
) -> list[SequenceSpec]:
    """One sequence per candidate. They differ in seed; the prompt's logprobs are asked of one."""
    sampling = call.sampling
    return [
        SequenceSpec(
            sequence_id=sequence_id,
            prompt_ids=call.prompt_ids,
            output_ids=[],
            sampling=msgspec.structs.replace(
                sampling,
                seed=candidate_seed(sampling.seed, index),
                prompt_logprobs=sampling.prompt_logprobs if index == 0 else None,
            ),
            max_tokens=max_tokens,
            expected_tokens=expected_tokens,
            min_tokens=call.min_tokens,
            eos_ids=eos_ids,
            stop_ids=call.stop_ids,
            priority=call.priority,
            namespace=namespace,
            use_prefix_cache=not call.skip_lookup,
            publish_blocks=not call.skip_insert,
            arrival_seconds=arrival_seconds,
            tenant=call.tenant,
        )
        for index, sequence_id in enumerate(sequence_ids)
    ]
