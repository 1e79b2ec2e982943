"""What to do when the device has no memory for a step, rung by rung. Pure.

Each rung costs more than the one before, so it is tried only when those did not help:

1. RETRY: the allocator lets go of what it keeps, and the step is half as large.
2. SHRINK: the KV pool gives back what was lacking and a quarter more.
3. REQUEUE: all sequences but one lose their blocks, of which the pool gives back as many
   again, and steps are as small as they can be.
4. FAIL: the one that is left ends with an error, and all rest, so that a shortage which is about
   to end does not take one after the other. The next failure begins at 1 again.

What others take of the device they may soon give back, and the pool may still be on its way to
becoming smaller. So before the fourth rung the third is taken again and again, with rests between,
for some time since a step last succeeded.

A step that succeeds ends the climb. The token budget comes back more slowly: it doubles after
some good steps, and after more of them each time that a step failed for its new size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from service.engine.figures import OomRung

_TRIES = {OomRung.RETRY: 3, OomRung.SHRINK: 2, OomRung.REQUEUE: 1, OomRung.FAIL: 1}
_CLIMB = [rung for rung in OomRung for _ in range(_TRIES[rung])]
# Beyond the bytes that were wanted: the allocator rounds up, and the next step is no smaller.
_SHRINK_MARGIN = 0.25
_GOOD_STEPS = 8  # before the token budget doubles
_MAX_GOOD_STEPS = 256  # where that has failed again and again
_REST_SECONDS = 0.1  # before a step is tried again that failed alone; doubles
_MAX_REST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Measure:
    """What a failed step calls for."""

    rung: OomRung
    step_tokens: int  # the token budget from now on
    shrink_bytes: int = 0  # that the pool is to give back


class OomLadder:
    """Chooses the rung, and remembers the token budget that memory allows."""

    def __init__(self, max_step_tokens: int, wait_seconds: float) -> None:
        """`wait_seconds`: from the first of the failures in a row, before one is final."""
        self._max_step_tokens = max_step_tokens
        self._wait_seconds = wait_seconds
        self._began_seconds: float | None = None  # when the first in a row failed
        self._rest_seconds = _REST_SECONDS
        self._rests_until_seconds = -math.inf
        self._failures = 0  # in a row
        self._good_steps = 0  # since a failure, or since the budget doubled
        self._patience_steps = _GOOD_STEPS
        self._proven_tokens = max_step_tokens  # of the largest step that may be trusted
        self._counts = dict.fromkeys(OomRung, 0)
        self.step_tokens = max_step_tokens  # the token budget in force
        self.failed_seconds: float | None = None  # when a step failed last, monotonic

    @property
    def rungs(self) -> tuple[int, int, int, int]:
        """How often each rung was taken, in order of `OomRung`."""
        retries, shrinks, requeues, fails = (self._counts[rung] for rung in OomRung)
        return retries, shrinks, requeues, fails

    def is_resting(self, now_seconds: float) -> bool:
        """Whether it is too early to compute a step."""
        return now_seconds < self._rests_until_seconds

    def failed(self, step_tokens: int, wanted_bytes: int, now_seconds: float) -> Measure:
        """A step of `step_tokens` failed, since an allocation of `wanted_bytes` did."""
        if self._began_seconds is None:
            self._began_seconds = now_seconds
        rung = _CLIMB[self._failures]
        if rung is OomRung.FAIL and now_seconds - self._began_seconds < self._wait_seconds:
            rung = OomRung.REQUEUE
            self._rests_until_seconds = now_seconds + self._rest_seconds
            self._rest_seconds = min(2 * self._rest_seconds, _MAX_REST_SECONDS)
        else:
            self._failures = (self._failures + 1) % len(_CLIMB)
            if rung is OomRung.FAIL:
                self._rests_until_seconds = now_seconds + _MAX_REST_SECONDS
        self._counts[rung] += 1
        self.failed_seconds = now_seconds
        if step_tokens > self._proven_tokens:
            self._patience_steps = min(2 * self._patience_steps, _MAX_GOOD_STEPS)
        self._proven_tokens = min(self._proven_tokens, step_tokens - 1)
        self._good_steps = 0
        if rung is OomRung.RETRY:
            self.step_tokens = max(1, min(self.step_tokens, step_tokens) // 2)
        elif rung is OomRung.REQUEUE:
            self.step_tokens = 1
        shrink_bytes = 0
        if rung in (OomRung.SHRINK, OomRung.REQUEUE):
            shrink_bytes = wanted_bytes + int(_SHRINK_MARGIN * wanted_bytes)
        return Measure(rung, self.step_tokens, shrink_bytes)

    def succeeded(self, step_tokens: int) -> None:
        """A step of `step_tokens` was computed."""
        self._failures = 0
        self._began_seconds = None
        self._rest_seconds = _REST_SECONDS
        self._good_steps += 1
        if step_tokens > self._proven_tokens:
            self._proven_tokens = step_tokens
            self._patience_steps = _GOOD_STEPS
        if self._good_steps >= self._patience_steps:
            self._good_steps = 0
            self.step_tokens = min(2 * self.step_tokens, self._max_step_tokens)
