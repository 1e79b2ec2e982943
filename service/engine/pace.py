"""How fast the engine goes: what a step may hold, and whether newcomers come in. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Members
from dataclasses import dataclass

from service.engine.request import Sequence, SequenceState


@dataclass(frozen=True, slots=True)
class Pace:
    """What memory allows at present; never more than the settings do."""

    step_tokens: int  # of a step, decode and prefill together, at least 1
    prefill_tokens: int  # of these, for prefill, at least 1
    admits: bool = True  # False: nobody is admitted while something runs


def take_turns(running: Members[Sequence], step_tokens: int) -> list[Sequence] | None:
    """Whose turn it is when a step is too narrow for all; None while it is wide enough.

    Wide enough is a step with a token for each sequence that decodes, and one more for those
    that prefill. In a narrower one each of those whose turn it is computes one token. They are
    the ones that have not computed for the longest time, so each has its turn within
    `len(running) / step_tokens` steps, rounded up, and no priority starves another.
    """
    decoding = sum(sequence.state is SequenceState.DECODE for sequence in running)
    if decoding + (decoding < len(running)) <= step_tokens:
        return None
    return sorted(running, key=lambda sequence: sequence.computed_step)[:step_tokens]
