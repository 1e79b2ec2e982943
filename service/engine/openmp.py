"""How the idle threads of the arithmetic wait."""

from __future__ import annotations

import os

SPIN_COUNT = 20_000


def wait_politely() -> None:
    """Lets threads spin for some tens of microseconds at a barrier, then sleep.

    A step has hundreds of barriers. Sleeping at once costs a wake-up at each: 87 ms a step
    against 33 ms, measured with SmolLM2 at batch 1 on two quiet cores. Spinning without end
    starves whoever else wants the core, the front above all: 5 s a step at load 10.

    GNU OpenMP reads these once, when torch loads, so call it before. What the user has set
    stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
