"""`python tests/fake_engine.py --fd N`: the engine process with a FakeRunner.

`--fail` makes the start fail as expected failures do, `--crash` makes the first step raise.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from engine_fakes import FakeBuilt, FakeRunner, build_fake
from numpy.typing import NDArray

from service.config import EngineSettings
from service.engine.entry import main
from service.engine.errors import StartError
from service.engine.messages import Loading, Predecessor
from service.engine.runner import StepBatch


class CrashingRunner(FakeRunner):
    """Raises in its first step."""

    def forward(self, batch: StepBatch) -> NDArray[np.float32]:
        raise RuntimeError(f"told to crash with {len(batch.token_ids)} tokens")


def build_failing(
    settings: EngineSettings,
    progress: Callable[[Loading], None],
    _beat: Callable[[], None],
    _predecessor: Predecessor | None,
) -> FakeBuilt:
    progress(Loading("weights", 0, 0, "bytes"))
    raise StartError(f"kv_blocks = {settings.kv_blocks}: told to fail")


def build_crashing(
    settings: EngineSettings,
    progress: Callable[[Loading], None],
    beat: Callable[[], None],
    predecessor: Predecessor | None,
) -> FakeBuilt:
    built = build_fake(settings, progress, beat, predecessor)
    atexit.register(time.sleep, 3600)  # as what tears down a device that is lost
    runner = CrashingRunner(built.num_blocks, settings.block_tokens, built.vocab_size)
    return replace(built, runner=runner)


BUILDS = {"--fail": build_failing, "--crash": build_crashing}

if __name__ == "__main__":
    option = sys.argv.pop() if sys.argv[-1] in BUILDS else ""
    sys.exit(main(BUILDS.get(option, build_fake)))
