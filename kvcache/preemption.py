"""Whose blocks to take back when running sequences outgrow the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VictimCandidate:
    """What the choice needs to know of one running sequence."""

    sequence_id: int
    priority: int  # higher is kept longer
    recompute_tokens: int  # to compute again when it returns, see CacheManager.recompute_tokens
    admitted_serial: int  # grows with every admission
    progressed: bool  # never preempted, or has produced a token since


def choose_victim(candidates: Sequence[VictimCandidate]) -> VictimCandidate | None:
    """The sequence to preempt by recompute, or None when preempting cannot help.

    Lowest priority first, then the cheapest recompute, then the last admitted. A sequence
    that has not produced a token since its last preemption is spared: taking it again would
    be a livelock in which work is done and nothing comes out. If all are such, the last
    admitted goes, so that the oldest comes to its end. A lone sequence is never a victim: its
    blocks would be given to itself.
    """
    if len(candidates) < 2:
        return None
    progressed = [candidate for candidate in candidates if candidate.progressed]
    if not progressed:
        return max(candidates, key=lambda candidate: candidate.admitted_serial)
    return min(
        progressed,
        key=lambda candidate: (
            candidate.priority,
            candidate.recompute_tokens,
            -candidate.admitted_serial,
        ),
    )
