"""How many columns of a bar each part of a whole gets."""

from __future__ import annotations

from collections.abc import Sequence


def segment_widths(amounts: Sequence[float], width: int) -> list[int]:
    """Columns for each amount; together `width`, unless all amounts are 0: then none.

    Largest remainder, but whoever has anything gets a column before anybody gets a second one:
    what is small does not look like nothing. With more parts than columns the largest get one.
    """
    total = sum(amounts)
    if total <= 0 or width <= 0:
        return [0] * len(amounts)
    by_size = sorted(range(len(amounts)), key=lambda index: -amounts[index])
    seen = [index for index in by_size if amounts[index] > 0][:width]
    shares = {index: amounts[index] / total * width for index in seen}
    widths = [0] * len(amounts)
    for index in seen:
        widths[index] = max(1, int(shares[index]))
    # Too wide by the columns that the small ones were given, or too narrow by what was cut off.
    while sum(widths) > width:
        widest = max(
            (index for index in seen if widths[index] > 1),
            key=lambda index: widths[index] - shares[index],
        )
        widths[widest] -= 1
    while sum(widths) < width:
        neediest = max(seen, key=lambda index: shares[index] - widths[index])
        widths[neediest] += 1
    return widths
