"""How far forecasts fall short of what happens."""

from __future__ import annotations

import math

_QUANTILE = 0.9  # of all requests that are to be done in the time forecast for them
_STEP = 0.2  # of the logarithm, per request
_RETURN_SHARE = 0.1  # of the way back that a request shows to be longer than a step
_MAX_FACTOR = 10.0


class Calibration:
    """A factor for forecasts, so that nine of ten requests are done in the time it gives.

    Whatever a forecast leaves out shows here: answers longer than the mean, others that come
    later and go first, a machine that slows down. The factor follows the quantile of
    actual to forecast time step by step, up fast and down slowly, as stochastic
    approximation of a quantile does (Robbins and Monro).
    """

    def __init__(self) -> None:
        self._log = 0.0

    @property
    def factor(self) -> float:
        """At least 1: that a server was idle says nothing of one that is not."""
        return math.exp(self._log)

    def note(self, ratio: float) -> None:
        """A request took `ratio` times as long as was forecast."""
        target = math.log(min(_MAX_FACTOR, max(1.0, ratio)))
        if target > self._log:
            self._log = min(target, self._log + _STEP * _QUANTILE)
        else:
            down = max(_STEP * (1 - _QUANTILE), _RETURN_SHARE * (self._log - target))
            self._log = max(target, self._log - down)
