"""What became of the tokens of a stream, against those that it should have had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Tokens that must agree beyond a seam before it counts as one. Fewer agree by chance: a
# difference in rounding is no loss.
_EVIDENCE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Damage:
    """Tokens of one stream that are not as they should be; all zero: it is exact."""

    lost: int = 0
    repeated: int = 0
    differing: int = 0  # from the first one on that is neither right nor explained by a seam

    def __bool__(self) -> bool:
        return bool(self.lost or self.repeated or self.differing)

    def __add__(self, other: Damage) -> Damage:
        return Damage(
            self.lost + other.lost,
            self.repeated + other.repeated,
            self.differing + other.differing,
        )


def compare(expected: Sequence[int], received: Sequence[int]) -> Damage:
    """Tells lost from repeated from differing tokens; no damage if and only if both are equal.

    A stream that was continued at the wrong place goes on with tokens that come later
    (some were lost) or came already (some were repeated). Where it goes on with others,
    the rest of it is of another text and is not compared any more.
    """
    lost = repeated = 0
    at = 0  # in expected
    position = 0  # in received
    while True:
        while (
            at < len(expected) and position < len(received) and expected[at] == received[position]
        ):
            at += 1
            position += 1
        if position == len(received):
            return Damage(lost + len(expected) - at, repeated)
        seam = _seam(expected, at, received[position:])
        if seam is None:
            rest = max(len(received) - position, len(expected) - at)
            return Damage(lost, repeated, rest)
        lost += max(0, seam - at)
        repeated += max(0, at - seam)
        at = seam


def _seam(expected: Sequence[int], at: int, rest: Sequence[int]) -> int | None:
    """The place nearest to `at` from which `rest` goes on; None: there is none."""
    for distance in range(1, len(expected) + 1):
        for place in (at + distance, at - distance):
            if 0 <= place < len(expected) and _goes_on(expected, place, rest):
                return place
    return None


def _goes_on(expected: Sequence[int], place: int, rest: Sequence[int]) -> bool:
    if len(rest) < _EVIDENCE_TOKENS and place + len(rest) != len(expected):
        return False
    evidence = rest[:_EVIDENCE_TOKENS]
    return list(expected[place : place + len(evidence)]) == list(evidence)
