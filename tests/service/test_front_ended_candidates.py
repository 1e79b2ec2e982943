"""A candidate that has ended well, in an engine whose step under way goes wrong for it."""

from __future__ import annotations

import pytest
from api_fakes import ENGINE_STATS
from front_fakes import ByteTokenizer, call

from service.config import ServeSettings
from service.engine.messages import (
    Exhausted,
    Failed,
    FinishReason,
    Output,
    Refused,
    Started,
    StepReport,
)
from service.front.call import sequence_specs
from service.front.dispatcher import Dispatcher
from service.front.events import Ended, Progress
from service.front.request import LiveRequest

ENDINGS = {
    "failed": {"failed": [Failed(1, "not a number")]},
    "exhausted": {"exhausted": [Exhausted(1, 4096, 7, 1000)]},
    "refused": {"refused": [Refused(1, 9, 4, 63)]},
}


class Nobody:
    """Hears what the dispatcher tells of its engine."""

    def engine_loading(self, progress: object) -> None: ...
    def engine_state_changed(self) -> None: ...
    def requests_progressed(self, requests: object, now_seconds: float) -> None: ...
    def engine_reported(self) -> None: ...


class Ready:
    """Stands for a supervisor with an engine that takes all it is sent."""

    writable = True
    process_id = 1
    restarts = 0

    def send(self, message: object) -> None: ...


def report(**ends: object) -> StepReport:
    nothing: dict[str, object] = {"started": [], "outputs": [], "finished": [], "refused": []}
    return StepReport(**{**nothing, "stats": ENGINE_STATS, **ends})  # type: ignore[arg-type]


@pytest.mark.parametrize("by_time", [False, True], ids=["stop string", "time limit"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_its_reader_gets_its_words_and_its_end(ending: str, by_time: bool) -> None:
    dispatcher = Dispatcher(ServeSettings(flight_records=0), ["never started"], Nobody())
    dispatcher._supervisor = Ready()  # type: ignore[assignment]
    asked = call([1, 2, 3], stop=("b",), max_tokens=50)
    request = LiveRequest(
        asked, range(1, 2), ByteTokenizer(), (), arrival_seconds=0.0, context_bound=False
    )
    specs = sequence_specs(
        asked,
        range(1, 2),
        max_tokens=50,
        expected_tokens=5,
        eos_ids=(),
        namespace=b"",
        arrival_seconds=0.0,
    )
    dispatcher.add(request, specs)
    dispatcher.engine_message(report(started=[Started(1, 0, 0.0)], outputs=[Output(1, [97])]))
    if by_time:
        dispatcher.end_sequences(request, request.finish_open(FinishReason.TIME_LIMIT))
    else:
        dispatcher.engine_message(report(outputs=[Output(1, [98])]))
    assert not request.over, "the engine has yet to tell its figures"

    dispatcher.engine_message(report(**ENDINGS[ending]))

    assert request.over
    events = [event async for event in _events(request)]
    (progress,) = (event for event in events if isinstance(event, Progress))
    assert "".join(delta.text for delta in progress.deltas) == "a"
    assert isinstance(events[-1], Ended)
    assert request.error is None


async def _events(request: LiveRequest):  # type: ignore[no-untyped-def]
    while (event := await request.next_event()) is not None:
        yield event
