"""The pulse of an engine: memory that two processes share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tiny_model import write_tiny_llama

from service.config import EngineSettings
from service.engine.build import build_runner
from service.engine.pulse import Pulse, open_pulse

BEAT_THRICE = """
import sys
from service.engine.pulse import Pulse
pulse = Pulse(int(sys.argv[1]))
for _ in range(3):
    pulse.beat()
"""


def test_beats_of_another_process_are_seen() -> None:
    fd = open_pulse()
    pulse = Pulse(fd)
    assert pulse.beats == 0
    pulse.beat()
    command = [sys.executable, "-c", BEAT_THRICE, str(fd)]
    subprocess.run(command, pass_fds=[fd], check=True, timeout=300)
    os.close(fd)
    assert pulse.beats == 4
    pulse.beat()
    assert pulse.beats == 5, "the memory outlives the file"


def test_two_engines_have_two_pulses() -> None:
    fds = [open_pulse(), open_pulse()]
    first, second = map(Pulse, fds)
    first.beat()
    assert (first.beats, second.beats) == (1, 0)
    for fd in fds:
        os.close(fd)


def test_every_layer_of_a_step_beats(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    beats = []
    settings = EngineSettings(model=str(tmp_path), kv_blocks=16, threads=1)
    build_runner(settings, lambda _: None, lambda: beats.append(1))
    layers, trial = 3, 1  # a start computes a token, and one layer of a step for its size
    assert len(beats) == layers + trial
