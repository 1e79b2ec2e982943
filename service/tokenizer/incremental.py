"""Turns a growing sequence of token ids into text, whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol


class TokenDecoder(Protocol):
    """What detokenization needs to know of a tokenizer."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether text begins with a space that encoding put there (SentencePiece)."""
        ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class IncrementalDetokenizer:
    """The text of a token sequence, piece by piece.

    The pieces joined are what `Tokenizer.decode` makes of the whole sequence. It works on
    the bytes of the tokens and never decodes one twice: a character whose bytes are spread
    over several tokens is held back until its last byte is there, and bytes that cannot
    become a character give U+FFFD exactly as `bytes.decode("utf-8", "replace")` has it.
    """

    __slots__ = ("_decoder", "_skip_special", "_strip_space", "_tokenizer")

    def __init__(
        self, tokenizer: TokenDecoder, skip_special: bool = True, *, at_start: bool = True
    ) -> None:
        """`at_start=False`: the tokens continue a text, so that a leading space is kept."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip_space = at_start and tokenizer.strips_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Takes the next tokens; answers the characters which they complete."""
        return self._decoder.decode(self._bytes(ids))

    def finish(self) -> str:
        """The sequence is over: answers U+FFFD for an unfinished character, or nothing."""
        return self._decoder.decode(b"", True)

    def _bytes(self, ids: Iterable[int]) -> bytes:
        tokenizer = self._tokenizer
        if self._skip_special:
            ids = (token_id for token_id in ids if not tokenizer.is_special(token_id))
        data = b"".join(map(tokenizer.token_bytes, ids))
        if data and self._strip_space:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return data


def decode(
    tokenizer: TokenDecoder, ids: Sequence[int], skip_special: bool = True, *, at_start: bool = True
) -> str:
    """The text of a whole token sequence."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special, at_start=at_start)
    return detokenizer.push(ids) + detokenizer.finish()
