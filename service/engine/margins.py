"""How much headroom is enough: ratios of headroom to the demand of the largest next step.

Sizing leaves some headroom when the pool is as large as was ordered and nobody else takes
memory. Where that is plenty, the thresholds are fixed: below twice the demand memory is short,
below 1.25 times it is about to end. On a small device it is not plenty: a tenth of 1 GiB may be
less than one step takes. There the thresholds are shares of what there is at rest, since
pressure means that less is left than should be.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcache.pressure import Threshold

# Less than this above the demand is never enough, whatever was ordered: then the pool gives way.
_LEAST_MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Margins:
    """Ratios of headroom to demand."""

    elevated: Threshold
    high: Threshold
    shrink_below: float  # the pool gives memory back
    shrink_to: float  # until so much is left
    grow_above: float  # the pool takes memory as long as so much is left


def margins(rest_ratio: float) -> Margins:
    """The margins where headroom is `rest_ratio` times the demand at rest."""
    rest = max(_LEAST_MARGIN, rest_ratio - 1.0)

    def ratio(most: float, share: float) -> float:
        return 1.0 + min(most, share * rest)

    high = Threshold(enter=ratio(0.25, 0.25), leave=ratio(0.4, 0.4))
    return Margins(
        elevated=Threshold(enter=ratio(1.0, 0.75), leave=ratio(1.2, 0.9)),
        high=high,
        shrink_below=high.enter,
        shrink_to=ratio(0.5, 0.5),
        grow_above=ratio(0.6, 0.6),
    )
