"""The front's end of the socket to one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from service.engine.framing import FrameSplitter, FrameTooLarge, frame
from service.engine.messages import FromEngine, ToEngine

# Above this the engine is not reading; submissions wait in the front, where they can still
# be cancelled for nothing.
_WRITE_HIGH_BYTES = 1024 * 1024


class EngineLink(asyncio.Protocol):
    """Sends and receives whole messages. `closed` is done when the engine is gone.

    After `closed` no message is delivered any more, so a message never belongs to an
    engine of the past. The write buffer is bounded by the caller, who submits only while
    `writable`; aborts, which are as many as submissions at most, may always be sent.
    """

    def __init__(
        self, on_message: Callable[[FromEngine], None], on_writable: Callable[[], None]
    ) -> None:
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._on_message = on_message
        self._on_writable = on_writable
        self._transport: asyncio.Transport | None = None
        self._writable = False
        self._splitter = FrameSplitter()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)

    @property
    def writable(self) -> bool:
        """Whether the engine keeps up with what is sent."""
        return self._writable

    def send(self, message: ToEngine) -> None:
        """Sends one message; without effect when the engine is gone."""
        if self._transport is not None and not self.closed.done():
            self._transport.write(frame(self._encoder.encode(message)))

    def close(self, cause: str) -> None:
        """Cuts the connection; `closed` is done when this returns."""
        if not self.closed.done():
            self.closed.set_result(cause)
        self._writable = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: the transports of uvloop are no subclasses of asyncio's.
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._transport = transport
        self._writable = True

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._splitter.feed(data):
                if self.closed.done():
                    return
                self._on_message(self._decoder.decode(payload))
        except (FrameTooLarge, msgspec.DecodeError) as error:
            self.close(f"the engine sent what is no message: {error}")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        if not self.closed.done():
            self._writable = True
            self._on_writable()

    def connection_lost(self, error: Exception | None) -> None:
        self.close(f"the connection broke: {error}" if error else "the connection ended")
