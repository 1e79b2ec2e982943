"""IncrementalDetokenizer: any tokens, any cut, joined pieces equal the full decode."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from service.tokenizer.incremental import IncrementalDetokenizer, decode

_SPECIAL_ID = 256


@dataclass(frozen=True)
class _Bytes:
    """Token n < 256 is byte n, 256 a control token, the rest are pieces of several bytes."""

    strips_leading_space: bool = False
    pieces: tuple[bytes, ...] = (b" a", "é".encode(), "🙂".encode()[1:], b"", "東京".encode()[:4])

    def token_bytes(self, token_id: int) -> bytes:
        if token_id == _SPECIAL_ID:
            return b"<eos>"
        return bytes([token_id]) if token_id < 256 else self.pieces[token_id - _SPECIAL_ID - 1]

    def is_special(self, token_id: int) -> bool:
        return token_id == _SPECIAL_ID


_RAW = st.lists(st.integers(0, 261), max_size=30)
_TEXT = st.text(alphabet="a é東🙂👩‍👩‍👧각\u0301 ", max_size=12).map(
    lambda text: list(text.encode())
)
_IDS = st.lists(st.one_of(_RAW, _TEXT), max_size=4).map(lambda parts: list(chain(*parts)))


@given(_IDS, st.lists(st.integers(0, 60), max_size=20), st.booleans(), st.booleans(), st.booleans())
@example([0xF0, 0x9F], [1], False, True, True)  # the stream ends inside a character
@example([0x20, 0x20, 0x41], [0, 1], True, True, True)
@example([_SPECIAL_ID, 0x20, 0x41], [1], True, True, True)
@example([0xE6, 0xE6, 0x9D, 0xB1], [1, 2], False, True, True)
def test_pieces_joined_equal_the_bytes_decoded_at_once(
    ids: list[int], cuts: list[int], strips: bool, skip_special: bool, at_start: bool
) -> None:
    tokenizer = _Bytes(strips_leading_space=strips)
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special, at_start=at_start)
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    pieces = [detokenizer.push(ids[start:end]) for start, end in pairwise(edges)]
    pieces.append(detokenizer.finish())

    kept = [i for i in ids if not (skip_special and i == _SPECIAL_ID)]
    raw = b"".join(tokenizer.token_bytes(i) for i in kept)
    if strips and at_start and raw.startswith(b" "):
        raw = raw[1:]
    assert "".join(pieces) == raw.decode("utf-8", "replace")
    assert decode(tokenizer, ids, skip_special, at_start=at_start) == "".join(pieces)


@given(_TEXT)
def test_valid_text_byte_by_byte_gives_whole_characters_at_once(ids: list[int]) -> None:
    detokenizer = IncrementalDetokenizer(_Bytes())
    sent = ""
    for count, token_id in enumerate(ids, 1):
        piece = detokenizer.push([token_id])
        assert "\ufffd" not in piece
        sent += piece
        # All that is complete is out: at most the bytes of one character are held back.
        assert sent == bytes(ids[:count]).decode("utf-8", "ignore")
    assert detokenizer.finish() == ""
