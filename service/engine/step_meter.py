"""What the engine has computed, and how fast."""

from __future__ import annotations

_STEP_SECONDS_WEIGHT = 0.1  # of the newest step in the moving average


class StepMeter:
    """Counts steps and tokens since the engine's start, and times steps that succeeded."""

    def __init__(self) -> None:
        self.steps = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.step_seconds = 0.0  # moving average
        self.busy_seconds = 0.0
        self.last_step_seconds = 0.0  # monotonic time when the last step ended

    def note(
        self, prefill_tokens: int, decode_tokens: int, began_seconds: float, ended_seconds: float
    ) -> None:
        """A step computed so many tokens of prompts, and chose so many new ones."""
        self.steps += 1
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decode_tokens
        self.last_step_seconds = ended_seconds
        seconds = ended_seconds - began_seconds
        self.busy_seconds += seconds
        if self.steps == 1:
            self.step_seconds = seconds
        else:
            self.step_seconds += _STEP_SECONDS_WEIGHT * (seconds - self.step_seconds)
