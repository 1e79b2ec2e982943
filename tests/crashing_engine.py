"""`python tests/crashing_engine.py --fd N`: the real engine, with a deadly token.

The process aborts, as a failed assertion in a kernel does, in the step that computes it.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from service.config import EngineSettings
from service.engine.build import BuiltRunner, build_runner
from service.engine.entry import main
from service.engine.messages import Loading, Predecessor
from service.engine.runner import StepBatch

DEADLY_TOKEN = 16  # <empty_output> of SmolLM2, which it does not say by itself


def build_crashing(
    settings: EngineSettings,
    progress: Callable[[Loading], None],
    beat: Callable[[], None],
    predecessor: Predecessor | None,
) -> BuiltRunner:
    built = build_runner(settings, progress, beat, predecessor)
    forward = built.runner.forward

    def crash_or_forward(batch: StepBatch) -> NDArray[np.float32]:
        if (batch.token_ids == DEADLY_TOKEN).any():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.abort()
        return forward(batch)

    built.runner.forward = crash_or_forward  # type: ignore[method-assign]
    return built


if __name__ == "__main__":
    sys.exit(main(build_crashing))
