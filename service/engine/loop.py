"""The engine loop: messages in, a step, one report out; a heartbeat while idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import assert_never

from service.engine.channel import Channel
from service.engine.core import EngineCore
from service.engine.messages import (
    Abort,
    Flush,
    Flushed,
    Heartbeat,
    Inject,
    LookedUp,
    Lookup,
    Resize,
    Shutdown,
    Submit,
)

# Between two rests of an idle engine, however often it is asked something: they look at the memory
# of the device.
_REST_SECONDS = 0.1
_RESTS_PER_HEARTBEAT = 10
# Between two looks at a resize that waits for others while nothing is computed.
_RESIZE_SECONDS = 0.02
# Between two steps while what waits cannot start, longer with each of them: loads from the tiers
# end soon, but others who have the memory of the device take their time.
_STALL_SECONDS = 0.002
_MAX_STALL_SECONDS = 0.05


def run_loop(
    core: EngineCore,
    channel: Channel,
    beat: Callable[[], None],
    inject: Callable[[Inject], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serves until the front says Shutdown; each turn beats, so that silence means frozen.

    `inject` takes orders of faults; `clock` tells seconds.

    Raises ChannelClosed when the front is gone. Whatever else it raises is a defect or a
    broken device; the front starts a new engine then.
    """
    rests = 0
    rest_at_seconds = clock() + _REST_SECONDS
    while True:
        beat()
        messages = channel.receive(_patience_seconds(core, rest_at_seconds - clock()))
        for message in messages:
            if isinstance(message, Shutdown):
                return
            if isinstance(message, Inject):
                inject(message)
            else:
                _handle(message, core, channel)
        if core.has_work or core.is_resizing:
            channel.send(core.step())
            for answer in core.take_resized():
                channel.send(answer)
            rest_at_seconds = clock() + _REST_SECONDS  # a step has just looked
        elif clock() >= rest_at_seconds:
            core.rest()
            rest_at_seconds = clock() + _REST_SECONDS
            rests += 1
            if rests % _RESTS_PER_HEARTBEAT == 0:
                channel.send(Heartbeat(core.stats()))


def _patience_seconds(core: EngineCore, until_rest_seconds: float) -> float:
    """How long to wait for messages before there is something else to do."""
    if core.has_work:
        return min(_STALL_SECONDS * core.stalled_steps, _MAX_STALL_SECONDS)
    return _RESIZE_SECONDS if core.is_resizing else max(0.0, until_rest_seconds)


def _handle(
    message: Submit | Abort | Flush | Lookup | Resize, core: EngineCore, channel: Channel
) -> None:
    match message:
        case Submit(sequences):
            core.submit(sequences)
        case Abort(sequence_ids):
            core.abort(sequence_ids)
        case Flush(call_id, namespace):
            result = core.flush(namespace)
            channel.send(Flushed(call_id, result.dropped_blocks, result.kept_blocks))
        case Lookup(call_id, namespace, token_ids):
            channel.send(LookedUp(call_id, core.lookup(namespace, token_ids)))
        case Resize():
            core.resize(message)
        case _:
            assert_never(message)
