"""The engine loop: messages in, a step, one report out; a heartbeat while idle."""

from __future__ import annotations

from typing import assert_never

from service.engine.channel import Channel
from service.engine.core import EngineCore
from service.engine.messages import (
    Abort,
    Flush,
    Flushed,
    Heartbeat,
    LookedUp,
    Lookup,
    Shutdown,
    Submit,
)

HEARTBEAT_SECONDS = 1.0


def run_loop(core: EngineCore, channel: Channel) -> None:
    """Serves until the front says Shutdown.

    Raises ChannelClosed when the front is gone. Whatever else it raises is a defect or a
    broken device; the front starts a new engine then.
    """
    while True:
        messages = channel.receive(0.0 if core.has_work else HEARTBEAT_SECONDS)
        for message in messages:
            if isinstance(message, Shutdown):
                return
            _handle(message, core, channel)
        if core.has_work:
            channel.send(core.step())
        elif not messages:
            channel.send(Heartbeat(core.stats()))


def _handle(message: Submit | Abort | Flush | Lookup, core: EngineCore, channel: Channel) -> None:
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
        case _:
            assert_never(message)
