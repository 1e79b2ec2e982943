"""The life of an engine process: load, say Ready, serve, leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from kvcache.errors import NativeCoreMissingError
from kvcache.memory import ArenaMemory
from service.config import EngineSettings
from service.engine.caching import make_manager, make_offload
from service.engine.channel import Channel, ChannelClosed
from service.engine.core import EngineCore
from service.engine.errors import StartError
from service.engine.loop import run_loop
from service.engine.messages import IncidentReport, Loading, Predecessor, Ready, StartFailed
from service.engine.seams import Seams, plain_seams
from service.models.errors import ModelFileError

if TYPE_CHECKING:
    from service.engine.build import BuiltRunner

# Settings; who hears of the progress of the start; the beat that says that a step comes on; the
# sizes to take over.
Build: TypeAlias = (
    "Callable[[EngineSettings, Callable[[Loading], None], Callable[[], None], Predecessor | None],"
    " BuiltRunner]"
)

EXIT_OK = 0
EXIT_START_FAILED = 1
EXIT_CRASHED = 1

_PERSIST_SECONDS = 2.0  # at the end, to put what is cached where the next engine finds it


def serve(
    channel: Channel,
    settings: EngineSettings,
    build: Build,
    beat: Callable[[], None],
    predecessor: Predecessor | None = None,
) -> int:
    """Runs an engine on a channel until the front ends it; returns the exit status.

    `beat` is called whenever the engine has come on. `predecessor` is the engine that this one
    replaces, if any.

    Expected failures of the start are told with `StartFailed`. Every other exception is a
    crash and passes through: the front sees the end of the stream and starts a new engine.
    """
    try:
        return _serve(channel, settings, build, beat, predecessor)
    except ChannelClosed:
        return EXIT_OK


def _serve(
    channel: Channel,
    settings: EngineSettings,
    build: Build,
    beat: Callable[[], None],
    predecessor: Predecessor | None,
) -> int:
    began_seconds = time.monotonic()
    try:
        built = build(settings, channel.send, beat, predecessor)
        memory = ArenaMemory(built.arena.arena)
        manager = make_manager(settings, built.num_blocks, memory)
        seams = _seams(built, settings, channel, beat)
        offload = make_offload(
            settings,
            manager,
            memory,
            built.fingerprint,
            wrap=seams.wrap_tier,
            is_replacement=predecessor is not None,
        )
    except (StartError, ModelFileError, NativeCoreMissingError) as error:
        channel.send(StartFailed(str(error)))
        return EXIT_START_FAILED
    core = EngineCore(
        seams.runner,
        manager,
        seams.arena,
        settings,
        built.max_context_tokens,
        ceiling_blocks=built.ceiling_blocks,
        device=seams.device,
        tell=lambda incident: channel.send(IncidentReport(incident)),
        offload=offload,
    )
    channel.send(
        Ready(
            model_version=built.model_version,
            vocab_size=built.vocab_size,
            max_context_tokens=built.max_context_tokens,
            block_tokens=settings.block_tokens,
            num_blocks=manager.usable_blocks,
            max_blocks=built.arena.max_blocks - 1,
            bytes_per_block=built.layout.block_bytes,
            weights_dtype=built.weights_dtype,
            kv_dtype=built.kv_dtype,
            device=built.device_name,
            attention_backend=built.attention_backend,
            load_seconds=time.monotonic() - began_seconds,
        )
    )
    try:
        run_loop(core, channel, beat, seams.inject)
    except ChannelClosed:
        raise
    except Exception as error:
        channel.send(IncidentReport(core.last_words(error)))
        raise
    if offload is not None:
        offload.persist(_PERSIST_SECONDS)
        offload.close()
    return EXIT_OK


def _seams(
    built: BuiltRunner, settings: EngineSettings, channel: Channel, beat: Callable[[], None]
) -> Seams:
    seams = plain_seams(built.runner, built.device, built.arena)
    if not settings.allow_faults:
        return seams
    from service.engine.faulty.wiring import with_faults  # with torch, and in few engines

    return with_faults(
        seams, tell=channel.send, beat=beat, load_seconds=settings.tier_timeout_seconds
    )
