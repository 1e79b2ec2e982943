"""The engine's end of the socket to the front: typed messages, blocking writes."""

from __future__ import annotations

import select
import socket
from types import TracebackType

import msgspec

from service.engine.framing import FrameSplitter, frame
from service.engine.messages import FromEngine, ToEngine

_RECEIVE_BYTES = 1 << 18


class ChannelClosed(Exception):
    """The front is gone: nobody will read what this engine says."""


class Channel:
    """Sends `FromEngine` and receives `ToEngine` messages over a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(True)
        self._splitter = FrameSplitter()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)

    def send(self, message: FromEngine) -> None:
        """Sends one message. Blocks while the socket's buffer is full.

        Raises ChannelClosed when the front is gone.
        """
        try:
            self._socket.sendall(frame(self._encoder.encode(message)))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed from error

    def receive(self, wait_seconds: float) -> list[ToEngine]:
        """All messages that have arrived; waits that long for the first bytes.

        0 seconds never blocks. An empty list means that nothing complete came in time.
        Raises ChannelClosed when the front is gone.
        """
        messages: list[ToEngine] = []
        timeout_milliseconds = wait_seconds * 1000
        while self._poller.poll(timeout_milliseconds):
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except ConnectionResetError as error:
                raise ChannelClosed from error
            if not data:
                raise ChannelClosed
            messages.extend(self._decoder.decode(payload) for payload in self._splitter.feed(data))
            timeout_milliseconds = 0
        return messages

    def close(self) -> None:
        """Closes the socket; the front sees the end of the stream."""
        self._socket.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
