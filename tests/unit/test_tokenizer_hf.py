"""Tokenizers from Hugging Face folders, against the `tokenizers` library and SentencePiece."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
from tiny_tokenizers import (
    CHATML,
    byte_level_tokenizer,
    hf_folder,
    sentencepiece_folder_tokenizer,
    sentencepiece_model,
    with_bos,
)
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Reference

from service.models.errors import ModelFileError
from service.models.source import ModelKind, ModelSource
from service.tokenizer import ChatMessage, ControlTokenInTextError, load_tokenizer

CHATML_CONFIG: dict[str, object] = {
    "bos_token": "<|im_start|>",
    "eos_token": {"content": "<|im_end|>", "special": True},
    "chat_template": CHATML,
}
TEXTS = ["", " a", "naïve 東京 👩‍👩‍👧", "x  y\n\n", "a<think>b"]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_ids_equal_the_library(tmp_path: Path, text: str) -> None:
    tokenizer = load_tokenizer(hf_folder(tmp_path, byte_level_tokenizer()))
    reference = Reference.from_str(byte_level_tokenizer())
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text).ids
    assert tokenizer.decode(ids) == reference.decode(ids) == text


@pytest.mark.parametrize("text", ["thee", " two  spaces", "Käse 東 \n", "a"])
def test_sentencepiece_ids_equal_the_library(tmp_path: Path, text: str) -> None:
    stored = sentencepiece_folder_tokenizer()
    tokenizer = load_tokenizer(hf_folder(tmp_path, stored, config={"unk_token": "<unk>"}))
    reference = Reference.from_str(stored)
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text).ids
    assert tokenizer.decode(ids) == reference.decode(ids)
    if not text.startswith(" "):
        oracle = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())
        assert ids == oracle.encode(text)


def test_the_space_before_the_first_word_stays_the_first(tmp_path: Path) -> None:
    """Behind a control token the "first" scheme puts no space; with "always" it does."""
    template = "{{ '<s>' + messages[0].content + '</s>' + messages[1].content }}"
    messages = [ChatMessage("user", "summer"), ChatMessage("assistant", "winds")]
    for scheme in ("first", "always"):
        stored = sentencepiece_folder_tokenizer(prepend_scheme=scheme)
        source = hf_folder(tmp_path / scheme, stored, config={"chat_template": template})
        expected = Reference.from_str(stored).encode("<s>summer</s>winds").ids
        assert load_tokenizer(source).encode_chat(messages) == expected


def test_a_marker_that_is_not_declared_special_is_a_control_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(hf_folder(tmp_path, byte_level_tokenizer()))
    role = Reference.from_str(byte_level_tokenizer()).token_to_id("<|role|>")
    assert tokenizer.is_special(role)
    assert role not in tokenizer.encode("a <|role|> b")
    assert tokenizer.decode([role]) == ""
    assert tokenizer.decode([role], skip_special=False) == "<|role|>"


def test_text_whose_merges_spell_a_control_token_is_cut(tmp_path: Path) -> None:
    vocabulary = {"<": 0, "s": 1, ">": 2, "s>": 3, "<s>": 4, "a": 5}
    base = Reference(models.BPE(vocabulary, [("s", ">"), ("<", "s>")]))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    base.decoder = decoders.ByteLevel()
    base.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    assert base.encode("a<s>").ids == [5, 4]
    tokenizer = load_tokenizer(hf_folder(tmp_path, base.to_str()))
    assert tokenizer.encode("a<s><s>") == [5, 0, 3, 0, 3]


def test_text_that_only_a_control_token_can_spell_is_refused(tmp_path: Path) -> None:
    base = Reference(models.BPE({"a": 0, "b": 1}, []))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    base.decoder = decoders.ByteLevel()
    base.add_special_tokens([AddedToken("b", special=True, normalized=False)])
    with pytest.raises(ControlTokenInTextError, match=r"\[1\]"):
        load_tokenizer(hf_folder(tmp_path, base.to_str())).encode("ab")


@pytest.mark.parametrize(
    ("post_processor", "flag", "count"),
    [(False, None, 0), (False, True, 1), (True, None, 1), (True, True, 1), (True, False, 0)],
)
def test_bos_comes_from_the_flag_else_from_the_post_processor(
    tmp_path: Path, post_processor: bool, flag: bool | None, count: int
) -> None:
    stored = byte_level_tokenizer()
    if post_processor:
        stored = with_bos(stored, "<|im_start|>", 1)
    config = CHATML_CONFIG if flag is None else {**CHATML_CONFIG, "add_bos_token": flag}
    tokenizer = load_tokenizer(hf_folder(tmp_path, stored, config=config))
    plain = tokenizer.encode("x", add_special_tokens=False)
    assert tokenizer.encode("x") == [1] * count + plain
    # The template writes it itself: it stays single, and stays at all without the flag.
    assert tokenizer.encode_chat([ChatMessage("user", "x")])[:2].count(1) == 1


def test_eos_ids_are_those_of_all_files(tmp_path: Path) -> None:
    stored = byte_level_tokenizer()
    files = {"config.json": {"eos_token_id": 4}, "generation_config.json": {"eos_token_id": [2, 0]}}
    source = hf_folder(tmp_path / "a", stored, config=CHATML_CONFIG, files=files)
    assert load_tokenizer(source).eos_ids == (2, 0)
    source = hf_folder(
        tmp_path / "b", stored, config=CHATML_CONFIG, files={"config.json": {"eos_token_id": 4}}
    )
    assert load_tokenizer(source).eos_ids == (2, 4)


def test_ids_past_the_model_vocabulary_count(tmp_path: Path) -> None:
    reference = Reference.from_str(byte_level_tokenizer())
    tokenizer = load_tokenizer(hf_folder(tmp_path, byte_level_tokenizer()))
    assert tokenizer.vocab_size == reference.token_to_id("<|role|>") + 1
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


_MESSAGE = [ChatMessage("user", "x")]


@pytest.mark.parametrize(
    ("config", "files", "text"),
    [
        ({"chat_template": "one"}, {}, "one"),
        ({"chat_template": [{"name": "default", "template": "two"}]}, {}, "two"),
        ({"chat_template": [{"name": "other", "template": "three"}]}, {}, "three"),
        ({"chat_template": "one"}, {"chat_template.jinja": "four"}, "four"),
    ],
)
def test_where_the_template_comes_from(
    tmp_path: Path, config: dict[str, object], files: dict[str, object], text: str
) -> None:
    tokenizer = load_tokenizer(
        hf_folder(tmp_path, byte_level_tokenizer(), config=config, files=files)
    )
    assert tokenizer.decode(tokenizer.encode_chat(_MESSAGE)) == text


@pytest.mark.parametrize(
    "named",
    [
        {"tokenizer_config.json": {"chat_template": [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "{{ tools | tojson }}"},
        ]}},
        {
            "chat_template.jinja": "plain",
            "additional_chat_templates/tool_use.jinja": "{{ tools | tojson }}",
        },
    ],
)  # fmt: skip
def test_the_tools_template_serves_conversations_with_tools(
    tmp_path: Path, named: dict[str, object]
) -> None:
    tokenizer = load_tokenizer(hf_folder(tmp_path, byte_level_tokenizer(), files=named))
    assert tokenizer.decode(tokenizer.encode_chat(_MESSAGE)) == "plain"
    with_tools = tokenizer.encode_chat(_MESSAGE, tools=[{"name": "f"}])
    assert json.loads(tokenizer.decode(with_tools)) == [{"name": "f"}]


def _without_decoder() -> str:
    stored = json.loads(byte_level_tokenizer())
    return json.dumps({**stored, "decoder": None})


def _wordpiece() -> str:
    stored = json.loads(byte_level_tokenizer())
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    return json.dumps({**stored, "decoder": decoder})


@pytest.mark.parametrize(
    ("stored", "config", "files", "field"),
    [
        ("{", None, {}, "file"),
        (_without_decoder(), None, {}, "decoder"),
        (_wordpiece(), None, {}, "decoder"),
        (byte_level_tokenizer(), {"bos_token": "<nope>"}, {}, "bos_token"),
        (byte_level_tokenizer(), {"eos_token": 3}, {}, "eos_token"),
        (byte_level_tokenizer(), {"add_bos_token": "yes"}, {}, "add_bos_token"),
        (byte_level_tokenizer(), {"chat_template": 3}, {}, "chat_template"),
        (byte_level_tokenizer(), {"chat_template": "{% for %}"}, {}, "chat_template"),
        (
            byte_level_tokenizer(),
            {"chat_template": [{"name": x, "template": ""} for x in "ab"]},
            {},
            "chat_template",
        ),
        (byte_level_tokenizer(), None, {"tokenizer_config.json": "[]"}, "content"),
        (byte_level_tokenizer(), None, {"tokenizer_config.json": "{"}, "content"),
        (
            byte_level_tokenizer(),
            None,
            {"generation_config.json": {"eos_token_id": [1, 99_999]}},
            "eos_token_id",
        ),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path,
    stored: str,
    config: dict[str, object] | None,
    files: dict[str, object],
    field: str,
) -> None:
    with pytest.raises(ModelFileError) as caught:
        load_tokenizer(hf_folder(tmp_path, stored, config=config, files=files))
    assert caught.value.field == field


def test_a_template_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    source = hf_folder(tmp_path, byte_level_tokenizer())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja.*not UTF-8"):
        load_tokenizer(source)


def test_a_folder_without_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json.*is missing"):
        load_tokenizer(ModelSource(ModelKind.HF_FOLDER, tmp_path, "tiny"))


def test_other_models_than_bpe_are_named(tmp_path: Path) -> None:
    base = Reference(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    base.decoder = decoders.ByteLevel()
    with pytest.raises(ModelFileError, match=r"model\.type.*WordLevel"):
        load_tokenizer(hf_folder(tmp_path, base.to_str()))


def test_what_the_configuration_calls_special_is_a_control_token(tmp_path: Path) -> None:
    """Also when tokenizer.json has it as an ordinary entry of the vocabulary."""
    stored = json.loads(byte_level_tokenizer())
    stored["added_tokens"] = [
        token for token in stored["added_tokens"] if token["content"] != "<|im_end|>"
    ]
    source = hf_folder(tmp_path, json.dumps(stored), config=CHATML_CONFIG)
    tokenizer = load_tokenizer(source)
    assert tokenizer.is_special(2)
    assert 2 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.encode_chat([ChatMessage("user", "x")]).count(2) == 1


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_control_tokens_swallow_space_as_the_library_has_it(tmp_path: Path, side: str) -> None:
    base = Reference.from_str(byte_level_tokenizer())
    base.add_special_tokens([AddedToken("<mask>", normalized=False, special=True, **{side: True})])
    template = "a <mask> \n b<mask><mask>  <|im_end|> c <mask> "  # Jinja drops one newline
    source = hf_folder(tmp_path, base.to_str(), config={"chat_template": template + "\n"})
    ids = load_tokenizer(source).encode_chat([ChatMessage("user", "x")])
    assert ids == base.encode(template).ids


def test_of_nested_control_tokens_the_longest_is_taken(tmp_path: Path) -> None:
    base = Reference.from_str(byte_level_tokenizer())
    texts = ["<a>", "<a><b>", "<a><c>x", "<b>"]
    base.add_special_tokens([AddedToken(text, normalized=False) for text in texts])
    template = "<a><b><a><b>><a><c>y<b><a><a><c>xx"
    source = hf_folder(tmp_path, base.to_str(), config={"chat_template": template})
    ids = load_tokenizer(source).encode_chat([ChatMessage("user", "x")])
    assert ids == base.encode(template).ids


def test_truncation_and_padding_of_the_file_do_not_count(tmp_path: Path) -> None:
    base = Reference.from_str(with_bos(byte_level_tokenizer(), "<|im_start|>", 1))
    base.enable_truncation(3)
    base.enable_padding(length=8, pad_id=0, pad_token="<|endoftext|>")
    tokenizer = load_tokenizer(hf_folder(tmp_path, base.to_str()))
    ids = tokenizer.encode("longer than three tokens")
    assert ids[0] == 1
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>longer than three tokens"


def test_nested_control_tokens_up_to_the_bound(tmp_path: Path) -> None:
    base = Reference.from_str(byte_level_tokenizer())
    base.add_special_tokens([AddedToken("#" * size, normalized=False) for size in range(2, 129)])
    source = hf_folder(tmp_path / "a", base.to_str(), config={"chat_template": "x" + "#" * 128})
    ids = load_tokenizer(source).encode_chat([ChatMessage("user", "x")])
    assert ids[-1] == base.token_to_id("#" * 128)
    base.add_special_tokens([AddedToken("#" * 129, normalized=False)])
    with pytest.raises(ModelFileError, match="at most 128 characters"):
        load_tokenizer(hf_folder(tmp_path / "b", base.to_str()))


def test_look_alikes_are_encoded_as_the_library_encodes_them_as_text(tmp_path: Path) -> None:
    vocabulary = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4}
    base = Reference(models.BPE(vocabulary, [("<", "s")]))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    base.decoder = decoders.ByteLevel()
    base.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    tokenizer = load_tokenizer(hf_folder(tmp_path, base.to_str()))
    base.encode_special_tokens = True
    assert tokenizer.encode("<s>s") == base.encode("<s>s").ids == [3, 2, 1]
