"""What is done for sequences while they wait for admission."""

from __future__ import annotations

from collections import Counter

from kvcache import AdmissionRequest, CacheManager
from kvcache.admission import RETENTION_LEVELS
from service.engine.fair_queue import WaitingQueue
from service.engine.request import Sequence, SequenceState
from service.engine.sequence_tiers import SequenceTiers

_EXPECTED_SEQUENCES = 16  # first ones of the queue whose hits are kept from eviction


class WaitingRoom(WaitingQueue):
    """The queue; hits of the first ones are kept, and blocks brought from the tiers."""

    def __init__(self, manager: CacheManager, tiers: SequenceTiers) -> None:
        super().__init__()
        self._manager = manager
        self._tiers = tiers
        self._expected: set[int] = set()  # sequences whose hits are kept
        self._lengths: Counter[int] = Counter()  # how many have so many tokens
        self._logprob_seekers = 0

    @property
    def largest_tokens(self) -> int:
        """Tokens of the longest one; 0: nobody waits."""
        return max(self._lengths, default=0)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether one will take rows of logits for its prompt."""
        return self._logprob_seekers > 0

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence in its place."""
        super().add(sequence)
        self._lengths[sequence.num_tokens] += 1
        self._logprob_seekers += bool(sequence.missing_prompt_logprobs)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out that starts; ValueError if it is not there."""
        super().remove(sequence)
        self._forget(sequence)

    def give_up(self, sequence: Sequence) -> None:
        """Takes a sequence out that will never start."""
        super().give_up(sequence)
        self._forget(sequence)
        self._manager.forget(sequence.sequence_id)

    def request(self, sequence: Sequence, headroom_blocks: int) -> AdmissionRequest:
        """What to ask the manager for it.

        Its blocks outlast those of lower priority in the cache, as it goes before these itself.
        """
        spec = sequence.spec
        return AdmissionRequest(
            sequence_id=spec.sequence_id,
            token_ids=sequence.token_ids,
            namespace=spec.namespace,
            use_cache=sequence.may_hit_cache,
            publish=spec.publish_blocks,
            headroom_blocks=headroom_blocks,
            resumed=spec.resumed or sequence.state is SequenceState.PREEMPTED,
            tenant=spec.tenant,
            retention=min(max(spec.priority, 0), RETENTION_LEVELS - 1),
        )

    def awaits_hits(self, sequence: Sequence, request: AdmissionRequest, may_start: bool) -> bool:
        """Whether its prefix is about to be there: another one computes it, or a tier loads it.

        Loads begin only for one that could start otherwise: they take blocks, too.
        """
        if not request.use_cache:
            return False
        if self._manager.pending_prefix(request):
            return True
        return may_start and self._tiers.fetch(sequence)

    def keep_hits(self) -> None:
        """Keeps the hits of those that are next from being evicted while they wait."""
        for sequence in self.first(_EXPECTED_SEQUENCES):
            if sequence.may_hit_cache and sequence.sequence_id not in self._expected:
                self._expected.add(sequence.sequence_id)
                self._manager.expect(self.request(sequence, headroom_blocks=0))

    def _forget(self, sequence: Sequence) -> None:
        """While it waited, it had the tokens and wishes that it came with."""
        self._lengths[sequence.num_tokens] -= 1
        if not self._lengths[sequence.num_tokens]:
            del self._lengths[sequence.num_tokens]
        self._logprob_seekers -= bool(sequence.missing_prompt_logprobs)
        self._expected.discard(sequence.sequence_id)
        self._tiers.let_go(sequence)
