"""Tokenizers from GGUF metadata alone, against the tokenizers they were written from."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece
from tiny_tokenizers import (
    byte_level_fields,
    byte_level_tokenizer,
    sentencepiece_fields,
    sentencepiece_model,
    write_gguf,
)
from tokenizers import Tokenizer as Reference

from service.models.errors import ModelFileError
from service.tokenizer import ChatMessage, IncrementalDetokenizer, Tokenizer, load_tokenizer
from service.tokenizer.pretokenizers import PRE_TOKENIZER_RULES

TEXTS = [
    "",
    " ",
    "Shall I compare thee",
    "  two  spaces, three   and a\ttab\n\n",
    "naïve café, Привет, 東京は夜, 👩‍👩‍👧 각 e\u0301",
    "1234567 42 x=7",
    "\x00\x7f\u00a0\u00ad\u2581end",
    "It's WE'LL they're",
]


def _load(tmp_path: Path, fields: dict[str, object], **changes: object) -> Tokenizer:
    kept = {key: value for key, value in {**fields, **changes}.items() if value is not None}
    return load_tokenizer(write_gguf(tmp_path / "tiny.gguf", kept))


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_ids_equal_the_trained_tokenizer(tmp_path: Path, text: str) -> None:
    tokenizer = _load(tmp_path, byte_level_fields())
    ids = tokenizer.encode(text)
    assert ids == Reference.from_str(byte_level_tokenizer()).encode(text).ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_ids_and_text_equal_sentencepiece(tmp_path: Path, text: str) -> None:
    tokenizer = _load(tmp_path, sentencepiece_fields())
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text)
    assert tokenizer.decode(ids) == text.replace("\u2581", " ")
    assert tokenizer.encode(text) == [reference.bos_id(), *ids]


def test_sentencepiece_bytes_of_every_token(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, sentencepiece_fields())
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())
    for token_id in range(reference.vocab_size()):
        piece = reference.id_to_piece(token_id)
        expected = (
            bytes([int(piece[3:5], 16)])
            if reference.is_byte(token_id)
            else piece.replace("▁", " ").encode()
        )
        assert tokenizer.token_bytes(token_id) == expected


def test_text_of_a_continuation_keeps_its_leading_space(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, sentencepiece_fields())
    ids = tokenizer.encode("thee", add_special_tokens=False)
    assert tokenizer.decode(ids) == "thee"
    detokenizer = IncrementalDetokenizer(tokenizer, at_start=False)
    assert detokenizer.push(ids) + detokenizer.finish() == " thee"


def test_sentencepiece_without_space_prefix(tmp_path: Path) -> None:
    fields = sentencepiece_fields()
    tokenizer = _load(tmp_path, fields, **{"tokenizer.ggml.add_space_prefix": False})
    ids = tokenizer.encode("thee is", add_special_tokens=False)
    assert tokenizer.token_bytes(ids[0])[:1] == b"t"
    assert (
        tokenizer.decode([*ids, *tokenizer.encode(" x", add_special_tokens=False)]) == "thee is x"
    )
    assert tokenizer.decode(tokenizer.encode(" x")) == " x"


@pytest.mark.parametrize("text", ["<s>", "a</s>b", "<unk></s><s>", "<0x0A>"])
def test_sentencepiece_text_never_becomes_a_control_or_byte_token(
    tmp_path: Path, text: str
) -> None:
    fields = sentencepiece_fields()
    tokens = fields["tokenizer.ggml.tokens"]
    scores, types = fields["tokenizer.ggml.scores"], fields["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(scores, list)
    assert isinstance(types, list)
    # Pieces from which merges could spell "<s>" and "</s>".
    for piece in ("<", ">", "/", "s>", "</"):
        if piece not in tokens:
            tokens.append(piece)
            scores.append(1.0)
            types.append(1)
    tokenizer = _load(tmp_path, fields)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("special", ["<|im_start|>", "<|endoftext|>", "<|role|>"])
def test_byte_level_text_never_becomes_a_control_token(tmp_path: Path, special: str) -> None:
    tokenizer = _load(tmp_path, byte_level_fields())
    ids = tokenizer.encode(f"a{special}b {special}")
    assert not any(tokenizer.is_special(token_id) for token_id in ids)
    assert tokenizer.decode(ids) == f"a{special}b {special}"


def test_user_defined_tokens_are_text_and_stay_whole(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, byte_level_fields())
    ids = tokenizer.encode("a<think>b")
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b"a", b"<think>", b"b"]
    assert tokenizer.decode(ids) == "a<think>b"


def test_bos_is_added_once_where_the_file_wants_it(tmp_path: Path) -> None:
    fields = byte_level_fields()
    without = _load(tmp_path, fields)
    assert without.encode("x") == without.encode("x", add_special_tokens=False)
    with_bos = _load(tmp_path, fields, **{"tokenizer.ggml.add_bos_token": True})
    assert with_bos.encode("x") == [with_bos.bos_id, *without.encode("x")]
    # The template begins with the same token: not doubled, and kept without add_bos.
    messages = [ChatMessage("user", "x")]
    assert with_bos.encode_chat(messages) == without.encode_chat(messages)
    assert without.encode_chat(messages)[:2].count(without.bos_id) == 1
    template = {"tokenizer.chat_template": "{{ messages[0].content }}"}
    bare = _load(tmp_path, fields, **template, **{"tokenizer.ggml.add_bos_token": True})
    assert bare.encode_chat(messages) == bare.encode("x")


def test_ids_that_end_a_generation(tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 2}
    assert _load(tmp_path, byte_level_fields(), **ends).eos_ids == (2, 0)


def test_facts(tmp_path: Path) -> None:
    fields = byte_level_fields()
    tokenizer = _load(tmp_path, fields)
    tokens = fields["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.token_bytes(len(tokens)) == b""  # a padded vocabulary
    assert tokenizer.has_chat_template
    assert not _load(tmp_path, fields, **{"tokenizer.chat_template": None}).has_chat_template


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"tokenizer.ggml.model": "wordpiece"}, "tokenizer.ggml.model", "gpt2, llama"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model", "is missing"),
        ({"tokenizer.ggml.pre": "zebra"}, "tokenizer.ggml.pre", "unknown pre-tokenizer"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens", "is missing"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens", "list of str"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "tokenizer.ggml.tokens", "occurs twice"),
        ({"tokenizer.ggml.token_type": [1]}, "length of tokenizer.ggml.token_type", "one for each"),
        ({"tokenizer.ggml.token_type": [1.5] * 400}, "tokenizer.ggml.token_type", "list of int"),
        ({"tokenizer.ggml.merges": ["ab"]}, "tokenizer.ggml.merges", "two tokens"),
        ({"tokenizer.ggml.merges": ["qq zz"]}, "tokenizer.ggml.merges", "union is a token"),
        (
            {"tokenizer.ggml.eos_token_id": 4294967295},
            "tokenizer.ggml.eos_token_id",
            "vocabulary of",
        ),
        ({"tokenizer.ggml.bos_token_id": 10_000}, "tokenizer.ggml.bos_token_id", "vocabulary of"),
        ({"tokenizer.chat_template": "{% if %}"}, "chat_template", "line 1"),
    ],
)
def test_bad_metadata_is_named(
    tmp_path: Path, change: dict[str, object], field: str, reason: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        _load(tmp_path, byte_level_fields(), **change)
    assert caught.value.field == field
    assert reason in str(caught.value)


def test_sentencepiece_without_scores_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.scores"):
        _load(tmp_path, sentencepiece_fields(), **{"tokenizer.ggml.scores": None})


def test_the_tokens_that_end_are_control_tokens_whatever_their_type(tmp_path: Path) -> None:
    fields = byte_level_fields()
    tokens = fields["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokenizer = _load(tmp_path, fields, **{"tokenizer.ggml.token_type": [1] * len(tokens)})
    assert [i for i in range(len(tokens)) if tokenizer.is_special(i)] == [1, 2]
    assert 2 not in tokenizer.encode("<|im_end|>")
    messages = [ChatMessage("user", "x")]
    assert tokenizer.encode_chat(messages).count(2) == 1


def test_sentencepiece_without_byte_tokens_answers_one_unknown(tmp_path: Path) -> None:
    fields = sentencepiece_fields()
    keys = ("tokens", "scores", "token_type")
    columns = zip(*(_column(fields, key) for key in keys), strict=True)
    rows = [row for row in columns if row[2] != 6]
    changed = dict(zip(keys, map(list, zip(*rows, strict=True)), strict=True))
    tokenizer = _load(
        tmp_path, fields, **{f"tokenizer.ggml.{key}": value for key, value in changed.items()}
    )
    ids = tokenizer.encode("a東京b", add_special_tokens=False)
    assert ids.count(0) == 1
    assert tokenizer.decode(ids, skip_special=False) == "a<unk>b"


def _column(fields: dict[str, object], key: str) -> list[object]:
    value = fields[f"tokenizer.ggml.{key}"]
    assert isinstance(value, list)
    return value


# The words which a rule cuts " I'LL   x12345\n\n y" into; told apart by digits, case, spaces.
@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", [" I", "'", "LL", "  ", " x", "12345", "\n\n", " y"]),
        ("smollm", [" I", "'", "LL", "  ", " x", "1", "2", "3", "4", "5", "\n\n", " y"]),
        ("llama-bpe", [" I", "'LL", "  ", " x", "123", "45", "\n\n", " y"]),
        ("qwen2", [" I", "'LL", "  ", " x", "1", "2", "3", "4", "5", "\n\n", " y"]),
        ("qwen35", [" I", "'LL", "  ", " x", "1", "2", "3", "4", "5", "\n\n", " y"]),
        ("tekken", [" I", "'LL", "  ", " x", "1", "2", "3", "4", "5", "\n\n", " y"]),
        ("gpt-4o", [" I'LL", "  ", " x", "123", "45", "\n\n", " y"]),
        ("default", [" I", "'", "LL", "  ", " x", "123", "45", "\n\n", " y"]),
    ],
)
def test_words_of_a_rule(pre: str, words: list[str]) -> None:
    text = "".join(words)
    cut = PRE_TOKENIZER_RULES[pre].build().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == words


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZER_RULES))
def test_every_rule_keeps_every_byte(tmp_path: Path, pre: str) -> None:
    tokenizer = _load(tmp_path, byte_level_fields(pre))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_llama3_takes_a_word_that_is_a_token_without_merges(tmp_path: Path) -> None:
    fields = byte_level_fields()
    fields["tokenizer.ggml.merges"] = _column(fields, "merges")[-1:]
    shall = _load(tmp_path, byte_level_fields()).encode(" the")
    assert len(shall) == 1
    assert _load(tmp_path, {**fields, "tokenizer.ggml.pre": "llama3"}).encode(" the")[1:] == shall
    assert len(_load(tmp_path, {**fields, "tokenizer.ggml.pre": "gpt-2"}).encode(" the")) == 4
