"""The sorts of flight records, and which of them go when there are too many."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence


class FlightKind(enum.StrEnum):
    """What a record is about."""

    OOM = "oom"  # a rung of the OOM ladder
    DEVICE_LOST = "device-lost"  # last words of an engine: only a new process helps
    DEFECT = "defect"  # last words of an engine: a mistake of ours
    CRITICAL = "critical"  # the pressure level CRITICAL was entered
    ENGINE_DEATH = "engine-death"
    CONVICTION = "conviction"  # a request was found to kill engines
    GIVEN_UP = "given-up"  # the server will not start another engine
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> FlightKind:  # noqa: ARG003 (the form of enum)
        """Records of later versions can be read."""
        return cls.OTHER


def kind_of(text: str) -> FlightKind:
    """The kind of an incident, as the engine names it."""
    return FlightKind(text.replace(" ", "-"))


def surplus(kinds: Sequence[FlightKind], limit: int) -> list[int]:
    """Indexes of those to drop so that `limit` are left; `kinds` comes oldest first.

    The oldest of the commonest kind goes first, so that a storm of one kind cannot push out the
    only record of another. Of kinds that are equally common, the one with the oldest record
    gives. The newest record stays as long as any does.
    """
    left: dict[FlightKind, list[int]] = {}
    for index, kind in enumerate(kinds):
        left.setdefault(kind, []).append(index)
    counts = Counter(kinds)
    dropped: list[int] = []
    for _ in range(max(0, len(kinds) - limit)):
        kind = min(counts, key=lambda kind: (-counts[kind], left[kind][0]))
        dropped.append(left[kind].pop(0))
        counts[kind] -= 1
        if not counts[kind]:
            del counts[kind]
    return sorted(dropped)
