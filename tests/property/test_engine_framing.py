"""Frames survive any cut of the byte stream."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.framing import MAX_FRAME_BYTES, FrameSplitter, FrameTooLarge, frame


@given(payloads=st.lists(st.binary(max_size=50)), data=st.data())
def test_payloads_come_out_as_they_went_in(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    splitter = FrameSplitter()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [payload for piece in pieces for payload in splitter.feed(piece)] == payloads


def test_an_absurd_length_is_refused_before_anything_is_kept() -> None:
    with pytest.raises(FrameTooLarge) as caught:
        list(FrameSplitter().feed(struct.pack("<I", MAX_FRAME_BYTES + 1)))
    assert caught.value.frame_bytes == MAX_FRAME_BYTES + 1
