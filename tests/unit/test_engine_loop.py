"""The loop of the engine: how often an idle one rests, whatever it is asked meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_fakes import EngineHarness, spec_of

from service.engine.loop import run_loop
from service.engine.messages import (
    FromEngine,
    Heartbeat,
    LookedUp,
    Lookup,
    Shutdown,
    StepReport,
    Submit,
    ToEngine,
)

SECONDS = 10.0
RESTS_PER_SECOND = 10
# Sums of tenths are not exact, and the last rest may fall onto the end.
SLACK = 2


class ScriptedChannel:
    """Delivers messages at their times, on a clock that only waiting moves."""

    def __init__(self, script: Iterator[tuple[float, ToEngine]]) -> None:
        self.now_seconds = 0.0
        self.sent: list[FromEngine] = []
        self._script = script
        self._next = next(script)

    def receive(self, wait_seconds: float) -> list[ToEngine]:
        """As that of `Channel`: the next message, if it comes in time."""
        arrival_seconds, message = self._next
        if arrival_seconds > self.now_seconds + wait_seconds:
            self.now_seconds += wait_seconds
            return []
        self.now_seconds = max(self.now_seconds, arrival_seconds)
        self._next = next(self._script, (SECONDS, Shutdown()))
        return [message]

    def send(self, message: FromEngine) -> None:
        """Keeps it."""
        self.sent.append(message)

    def count(self, kind: type[FromEngine]) -> int:
        """Messages of this kind that the engine has sent."""
        return sum(isinstance(message, kind) for message in self.sent)


def every(interval_seconds: float) -> Iterator[tuple[float, ToEngine]]:
    """A lookup so often, until the end."""
    for number in range(1, int(SECONDS / interval_seconds)):
        yield number * interval_seconds, Lookup(number, b"", list(range(40)))
    yield SECONDS, Shutdown()


def run(channel: ScriptedChannel) -> tuple[int, int]:
    """Rests and beats of an engine on this channel."""
    core = EngineHarness().core
    rests, beats = [], []
    rest = core.rest

    def noted_rest() -> None:
        rests.append(channel.now_seconds)
        rest()

    core.rest = noted_rest  # type: ignore[method-assign]
    run_loop(
        core,
        channel,  # type: ignore[arg-type]
        beat=lambda: beats.append(channel.now_seconds),
        inject=lambda _: None,
        clock=lambda: channel.now_seconds,
    )
    return len(rests), len(beats)


@pytest.mark.parametrize("lookups_per_second", [0.5, 5, 20, 1000])
def test_what_an_idle_engine_is_asked_does_not_keep_it_from_rest(lookups_per_second: float) -> None:
    channel = ScriptedChannel(every(1 / lookups_per_second))
    rests, beats = run(channel)
    expected = int(SECONDS * RESTS_PER_SECOND)
    assert expected - SLACK <= rests <= expected
    assert channel.count(Heartbeat) == rests // RESTS_PER_SECOND
    assert channel.count(LookedUp) == int(SECONDS * lookups_per_second) - 1
    assert beats <= rests + channel.count(LookedUp) + 2 * SLACK, "it does not spin"


def test_an_engine_at_work_does_not_rest() -> None:
    """A step looks at memory itself, and the idle time after it begins with a whole interval."""
    script: list[tuple[float, ToEngine]] = [
        (0.15, Submit([spec_of(1, prompt=range(30), max_tokens=5)])),
        (0.24, Shutdown()),
    ]
    channel = ScriptedChannel(iter(script))
    rests, _ = run(channel)
    assert channel.count(StepReport) >= 5
    assert rests == 1, "before the work; 0.09 s after it are too short for another one"
