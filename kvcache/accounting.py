"""What the manager counts beside what the core does: lookups and preemptions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvcache.admission import AdmissionRequest, Fits, most_hits
from kvcache.core import CacheCore, PrefixMatch
from kvcache.preemption import PreemptionMode
from kvcache.stats import MissReason, RecomputeCause


@dataclass(frozen=True, slots=True)
class _Preempted:
    cause: RecomputeCause  # of what it has to compute again
    computed_tokens: int
    namespace: bytes


class Accounting:
    """Counters since the start."""

    def __init__(self, core: CacheCore, block_tokens: int) -> None:
        self._core = core
        self._block_tokens = block_tokens
        self._preempted: dict[int, _Preempted] = {}  # that may come back
        self.lookup_tokens = 0
        self.hit_tokens = 0
        self.partial_hit_tokens = 0
        self.resumed_hit_tokens = 0
        self.regretted_tokens = 0
        self.forks = 0
        self.misses = dict.fromkeys(MissReason, 0)
        self.preemptions = dict.fromkeys(PreemptionMode, 0)
        self.recompute_tokens = dict.fromkeys(RecomputeCause, 0)

    # --- lookups -------------------------------------------------------------

    def looked_up(self, fits: Fits) -> None:
        """A sequence is about to start; what it evicts then is no reason for its miss."""
        request, match, hit_tokens = fits.plan.request, fits.plan.match, fits.cached_tokens
        self.partial_hit_tokens += fits.plan.partial[1]
        gone = self._preempted.pop(request.sequence_id, None)
        if request.resumed:
            self.resumed_hit_tokens += hit_tokens
            if gone is not None:
                self.recompute_tokens[gone.cause] += max(0, gone.computed_tokens - hit_tokens)
            return
        if not request.use_cache:
            self.misses[MissReason.DISABLED] += 1
            return
        self.lookup_tokens += request.token_ids.size
        self.hit_tokens += hit_tokens
        max_blocks = most_hits(request.token_ids, self._block_tokens)
        if max_blocks == 0:
            self.misses[MissReason.TOO_SHORT] += 1
        elif match[0] < max_blocks:
            self.misses[self._miss_reason(request, match, max_blocks)] += 1

    def _miss_reason(
        self, request: AdmissionRequest, match: PrefixMatch, max_blocks: int
    ) -> MissReason:
        forgotten = self._core.forgotten_blocks(
            request.namespace, request.token_ids, match, max_blocks
        )
        if forgotten:
            self.regretted_tokens += forgotten * self._block_tokens
            self.recompute_tokens[RecomputeCause.EVICTION] += forgotten * self._block_tokens
            return MissReason.EVICTED
        if self._core.begins_elsewhere(request.namespace, request.token_ids):
            return MissReason.NAMESPACE
        return MissReason.DIVERGED

    # --- preemptions ---------------------------------------------------------

    def preempted(
        self, request: AdmissionRequest, mode: PreemptionMode, computed_tokens: int
    ) -> None:
        """A sequence loses its blocks, with so many tokens computed."""
        self.preemptions[mode] += 1
        self._preempted[request.sequence_id] = _Preempted(
            RecomputeCause(mode.value), computed_tokens, request.namespace
        )

    def forget(self, sequence_id: int) -> None:
        """A preempted sequence does not come back."""
        self._preempted.pop(sequence_id, None)

    def flushed(self, namespace: bytes | None) -> None:
        """What preempted sequences of the namespace had computed is gone for this reason now."""
        for sequence_id, gone in self._preempted.items():
            if namespace is None or namespace == gone.namespace:
                self._preempted[sequence_id] = replace(gone, cause=RecomputeCause.FLUSH)
