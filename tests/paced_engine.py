"""`python tests/paced_engine.py FILE --fd N`: the fake engine, slow while the file exists."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from engine_fakes import FakeBuilt, build_fake
from numpy.typing import NDArray

from service.config import EngineSettings
from service.engine.entry import main
from service.engine.messages import Loading, Predecessor
from service.engine.runner import StepBatch

STEP_SECONDS = 0.1
SLOW = "slow"


class Pace:
    """Makes steps slow from now on, until it is let go."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SLOW
        self._path.touch()

    def let_go(self) -> None:
        """Steps take no longer than they must."""
        self._path.unlink()


def paced_command(folder: Path) -> tuple[str, ...]:
    """Starts engines that obey each `Pace` of this folder."""
    return sys.executable, __file__, str(folder / SLOW)


def build_paced(
    slow: Path,
    settings: EngineSettings,
    progress: Callable[[Loading], None],
    beat: Callable[[], None],
    predecessor: Predecessor | None,
) -> FakeBuilt:
    built = build_fake(settings, progress, beat, predecessor)
    forward = built.runner.forward

    def paced(batch: StepBatch) -> NDArray[np.float32]:
        if slow.exists():
            time.sleep(STEP_SECONDS)
        return forward(batch)

    built.runner.forward = paced  # type: ignore[method-assign]
    return built


if __name__ == "__main__":
    slow_while = Path(sys.argv.pop(1))
    sys.exit(main(lambda *arguments: build_paced(slow_while, *arguments)))
