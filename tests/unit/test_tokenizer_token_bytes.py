"""The bytes behind the spelling of tokens."""

from __future__ import annotations

import pytest
from tokenizers import pre_tokenizers

from service.tokenizer.token_bytes import Spelling, ordinary_token_bytes


def test_bytes_of_the_byte_level_alphabet_equal_the_library() -> None:
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in map(chr, range(0x250)):
        ((spelt, _),) = spelling.pre_tokenize_str(text)
        assert ordinary_token_bytes(spelt, Spelling.BYTE_LEVEL, False) == text.encode()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    values = {ordinary_token_bytes(character, Spelling.BYTE_LEVEL, False) for character in alphabet}
    assert values == {bytes([code]) for code in range(256)}


@pytest.mark.parametrize("text", ["\u00a0", "\u00ad", "a b", "東", "\x00"])
def test_text_outside_the_alphabet_is_literal(text: str) -> None:
    assert ordinary_token_bytes(text, Spelling.BYTE_LEVEL, False) == text.encode()


def test_sentencepiece_spells_bytes_only_where_the_vocabulary_falls_back_to_them() -> None:
    assert ordinary_token_bytes("<0xE2>", Spelling.SENTENCEPIECE, True) == b"\xe2"
    assert ordinary_token_bytes("<0xE2>", Spelling.SENTENCEPIECE, False) == b"<0xE2>"
    assert ordinary_token_bytes("<0xE2>", Spelling.BYTE_LEVEL, True) == b"<0xE2>"
    assert ordinary_token_bytes("▁a▁▁b", Spelling.SENTENCEPIECE, True) == b" a  b"
