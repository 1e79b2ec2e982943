"""When a request would be done, from what steps cost and from who is there already. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from service.front.step_costs import Costs


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request is expected to take."""

    sequences: int
    prompt_tokens: float  # to be computed: no cache has them
    output_tokens: float  # of each sequence; 0: nobody knows


@dataclass(frozen=True, slots=True)
class Load:
    """What a request finds; itself not counted."""

    slots: int  # sequences that can run at once
    running: int  # sequences that have begun
    ahead: int = 0  # sequences that wait and begin before it
    ahead_prompt_tokens: float = 0.0  # of these, to be computed
    reserve: float = 0.0  # sequences that are to find room besides
    unread_prompt_tokens: float = 0.0  # of those that have begun, to be computed

    @property
    def is_idle(self) -> bool:
        """Whether nobody is there."""
        return self.running + self.ahead == 0


@dataclass(frozen=True, slots=True)
class Turnover:
    """How fast sequences come and go while there are always others to follow."""

    output_tokens: float  # mean of a sequence
    prefill_per_output: float  # prompt tokens computed for each token of output


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long the phases of a request take from now on."""

    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float

    @property
    def seconds(self) -> float:
        """Until its last token."""
        return self.queue_seconds + self.prefill_seconds + self.decode_seconds


def forecast(
    costs: Costs, turnover: Turnover, load: Load, demand: Demand, chunk_tokens: int
) -> Forecast:
    """The time of a request that joins `load`.

    Whoever ends is taken to be replaced by another like it: a batch that is full of work stays
    full while it is refused who cannot be served. So in a burst that nobody follows the
    forecast is exact for those who came together, and too long, twice at most, for others.

    Args:
        chunk_tokens: most tokens of a prompt in one step.
    """
    present = load.running + load.ahead + load.reserve + demand.sequences
    batch = min(load.slots, present)
    step_seconds = costs.step_seconds(batch, batch * turnover.prefill_per_output)
    # A slot is free again after the output of a sequence; of all slots one so much more often.
    queued = present - batch
    queue_seconds = queued * turnover.output_tokens / batch * step_seconds
    # Who starts at the same time computes its prompt before; who starts before is in the steps.
    together_share = max(0.0, 1 - queued / load.ahead) if load.ahead else 0.0
    prompt_tokens = (
        demand.prompt_tokens + load.unread_prompt_tokens + load.ahead_prompt_tokens * together_share
    )
    prefill_steps = math.ceil(prompt_tokens / chunk_tokens)
    prefill_seconds = (
        prefill_steps * costs.step_seconds(batch) + prompt_tokens * costs.prefill_seconds
    )
    return Forecast(queue_seconds, prefill_seconds, demand.output_tokens * step_seconds)
