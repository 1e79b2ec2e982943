"""What is asked during a drill: texts of some length, so that their K and V fill memory."""

from __future__ import annotations

_OPENINGS = (
    "The lighthouse keeper climbed the stairs with a lamp in his hand, and",
    "Bread needs four things: flour, water, salt and time. The baker knows that",
    "When the train stopped between two stations, the passengers looked up and",
    "A river does not ask where the sea is. It only follows the ground, because",
    "In the year of the great frost the harbour was closed for three months, so",
    "The teacher drew a circle on the board and asked the class what it was, but",
    "Nobody in the village remembered who had built the bridge, although",
    "Mushrooms are neither plants nor animals. What we see of them in autumn is",
)


def prompts(count: int) -> tuple[str, ...]:
    """`count` prompts of about 150 tokens, no two with the same beginning.

    Each has all the openings, in an order of its own: prompts that begin alike would share
    their blocks, and a drill is to need many.
    """
    return tuple(
        f"Chapter {number}. " + " ".join(_rotated(number)) for number in range(1, count + 1)
    )


def _rotated(number: int) -> tuple[str, ...]:
    at = number % len(_OPENINGS)
    return _OPENINGS[at:] + _OPENINGS[:at]
