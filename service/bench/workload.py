"""One request of a benchmark, before it is sent."""

from __future__ import annotations

from dataclasses import dataclass

from service.client import Conversation


class WorkloadError(ValueError):
    """A prompt or trace file that cannot be used: file, line and what is wrong."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """What to ask and how much to let the model answer."""

    prompt: str | tuple[int, ...] | Conversation
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sizes of one request of a trace.

    `shared_blocks` are ids of leading blocks; requests with equal leading ids have equal
    leading tokens. Empty: nothing is shared.
    """

    prompt_tokens: int
    output_tokens: int
    shared_blocks: tuple[int, ...] = ()
