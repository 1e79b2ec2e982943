"""How a vocabulary spells bytes.

Byte-level BPE writes each byte as one printable character (the table of GPT-2);
SentencePiece writes text as it is, a space as U+2581, and a byte without a piece as <0xNN>.
"""

from __future__ import annotations

import enum
import re

SPACE_MARK = "▁"  # U+2581, SentencePiece's space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>", re.ASCII)


class Spelling(enum.Enum):
    """How the ordinary tokens of a vocabulary are written."""

    BYTE_LEVEL = "byte level"
    SENTENCEPIECE = "SentencePiece"


def _byte_characters() -> list[str]:
    """Character of each byte: itself where it is printable, else the next from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, spare = [], 0x100
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(spare))
            spare += 1
    return characters


_BYTE_CHARACTERS = _byte_characters()
# For str.translate and Latin-1: what is no byte character must not encode, so Latin-1
# characters outside the table go to one which Latin-1 lacks.
_TO_LATIN1: dict[int, str] = dict.fromkeys(range(256), "\uffff") | {
    ord(character): chr(byte) for byte, character in enumerate(_BYTE_CHARACTERS)
}


def ordinary_token_bytes(text: str, spelling: Spelling, byte_fallback: bool) -> bytes:
    """The bytes that an ordinary (not added) token stands for."""
    if spelling is Spelling.BYTE_LEVEL:
        try:
            return text.translate(_TO_LATIN1).encode("latin-1")
        except UnicodeEncodeError:  # not in the alphabet: the token is meant literally
            return text.encode()
    if byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes.fromhex(match[1])
    return text.replace(SPACE_MARK, " ").encode()
