"""From what the user asked for to an endless row of requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.bench.prompt_files import read_prompts
from service.bench.synthetic import (
    SharedPrefix,
    TokenSource,
    scaled,
    scaled_block_tokens,
    synthetic_request,
    traced_request,
)
from service.bench.traces import read_trace
from service.bench.workload import Lengths, PlannedRequest, WorkloadError
from service.client import Conversation, Message, Role

DEFAULT_OUTPUT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What to ask. At most one of `prompts` and `trace`; neither: random tokens."""

    prompts: Path | None = None
    chat: bool = False  # prompts as questions of a chat
    trace: Path | None = None
    length_scale: float = 1.0  # of a trace
    prompt_tokens: int = 256  # of a random prompt
    output_tokens: int | None = None  # None: the trace's, else DEFAULT_OUTPUT_TOKENS
    prefix: SharedPrefix | None = None  # of random prompts
    seed: int = 0

    @property
    def wants_exact_lengths(self) -> bool:
        """Whether the model should go on after its end of text."""
        return self.prompts is None


def plan_requests(
    spec: WorkloadSpec, *, vocab_size: int, max_context_tokens: int
) -> Iterator[PlannedRequest]:
    """Requests without end; files start again from their beginning.

    Requests of a trace that do not fit the context are left out.

    Raises:
        WorkloadError: the file cannot be used, or nothing in it fits.
    """
    output_tokens = spec.output_tokens or DEFAULT_OUTPUT_TOKENS
    if spec.prompts is not None:
        return _from_prompts(read_prompts(spec.prompts), output_tokens, chat=spec.chat)
    source = TokenSource(vocab_size, spec.seed)
    if spec.trace is not None:
        lengths = [_traced(entry, spec) for entry in read_trace(spec.trace)]
        where = str(spec.trace)
    else:
        lengths = [Lengths(spec.prompt_tokens, output_tokens)]
        where = "prompt plus output tokens"
    fitting = [entry for entry in lengths if _total(entry) <= max_context_tokens]
    if not fitting:
        shortest = min(map(_total, lengths))
        raise WorkloadError(
            f"{where}: the shortest request has {shortest} tokens, the context {max_context_tokens}"
        )
    return _from_lengths(fitting, source, spec)


def _traced(entry: Lengths, spec: WorkloadSpec) -> Lengths:
    entry = scaled(entry, spec.length_scale)
    if spec.output_tokens is None:
        return entry
    return Lengths(entry.prompt_tokens, spec.output_tokens, entry.shared_blocks)


def _total(lengths: Lengths) -> int:
    return lengths.prompt_tokens + lengths.output_tokens


def _from_prompts(
    prompts: Sequence[str], output_tokens: int, *, chat: bool
) -> Iterator[PlannedRequest]:
    for prompt in itertools.cycle(prompts):
        asked = Conversation([Message(Role.USER, prompt)]) if chat else prompt
        yield PlannedRequest(asked, output_tokens)


def _from_lengths(
    lengths: Sequence[Lengths], source: TokenSource, spec: WorkloadSpec
) -> Iterator[PlannedRequest]:
    block_tokens = scaled_block_tokens(spec.length_scale)
    for number, entry in enumerate(itertools.cycle(lengths)):
        if entry.shared_blocks:
            yield traced_request(source, number, entry, block_tokens)
        else:
            yield synthetic_request(source, number, entry, spec.prefix)
