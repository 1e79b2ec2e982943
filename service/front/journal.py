"""The journal: all that is needed to start every live sequence again in a new engine.

It holds what was asked (the SequenceSpec, seed included) and what was received. Since the
random number of a token depends on the seed and the token's index alone, a new engine that
gets both goes on exactly where the dead one stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from service.engine.messages import SequenceSpec


@dataclass(slots=True)
class _Entry:
    spec: SequenceSpec
    output_ids: list[int] = field(default_factory=list)
    started: bool = False


class Journal:
    """Entries of the sequences that have not ended."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, spec: SequenceSpec) -> None:
        """Begins the record of a sequence."""
        self._entries[spec.sequence_id] = _Entry(spec)

    def started(self, sequence_id: int) -> int:
        """Notes that an engine began to compute it.

        Answers how many tokens an earlier engine may have computed already: 0 at the first
        start, and for closed sequences, which are ignored.
        """
        entry = self._entries.get(sequence_id)
        if entry is None:
            return 0
        known_tokens = len(entry.spec.prompt_ids) + len(entry.output_ids)
        again, entry.started = entry.started, True
        return known_tokens if again else 0

    def was_started(self, sequence_id: int) -> bool:
        """Whether an engine began to compute it; False for closed sequences."""
        entry = self._entries.get(sequence_id)
        return entry is not None and entry.started

    def record(self, sequence_id: int, token_ids: list[int]) -> None:
        """Notes received tokens. Closed sequences are ignored."""
        entry = self._entries.get(sequence_id)
        if entry is not None:
            entry.output_ids += token_ids

    def close(self, sequence_id: int) -> None:
        """Ends the record: the sequence will not be started again. Idempotent."""
        self._entries.pop(sequence_id, None)

    def submission(self, sequence_id: int) -> SequenceSpec:
        """What to send to an engine that does not know the sequence."""
        entry = self._entries[sequence_id]
        if not entry.started:
            return entry.spec
        return msgspec.structs.replace(entry.spec, output_ids=list(entry.output_ids), resumed=True)
