"""Frames of the engine socket: a 4-byte little-endian length, then that many bytes.

The payload is one MessagePack message of `service.engine.messages`. Both sides use the
functions of this module; only how bytes get in and out of the socket differs. A stream
that ends inside a frame means what every end of stream means: the other side is gone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 256 * 1024 * 1024

_LENGTH = struct.Struct("<I")


class FrameTooLarge(Exception):
    """A frame announces or needs more bytes than `MAX_FRAME_BYTES`."""

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        super().__init__(f"frame of {frame_bytes} bytes, the limit is {MAX_FRAME_BYTES}")


def frame(payload: bytes) -> bytes:
    """The payload with its length in front, ready to be sent."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(len(payload))
    return _LENGTH.pack(len(payload)) + payload


class FrameSplitter:
    """Cuts a byte stream, fed in pieces of any size, into payloads."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Takes the next piece; yields every payload that is complete now."""
        self._pending += data
        start = 0
        try:
            while len(self._pending) - start >= LENGTH_BYTES:
                (size,) = _LENGTH.unpack_from(self._pending, start)
                if size > MAX_FRAME_BYTES:
                    raise FrameTooLarge(size)
                end = start + LENGTH_BYTES + size
                if len(self._pending) < end:
                    break
                payload = bytes(self._pending[start + LENGTH_BYTES : end])
                start = end
                yield payload
        finally:
            del self._pending[:start]
