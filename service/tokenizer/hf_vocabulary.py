"""Builds a vocabulary from a Hugging Face folder: tokenizer.json and the files around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from service.models.errors import ModelFileError
from service.models.fields import Fields
from service.tokenizer.token_bytes import SPACE_MARK, Spelling
from service.tokenizer.vocabulary import (
    Vocabulary,
    encoder,
    looks_like_control,
    marks_first_word,
)

_TOKENIZER = "tokenizer.json"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def hf_vocabulary(folder: Path) -> Vocabulary:
    """Builds the vocabulary; raises ModelFileError naming the file and the field at fault."""
    path = folder / _TOKENIZER
    if not path.is_file():
        raise ModelFileError(
            folder, _TOKENIZER, None, "is missing (a tokenizer.model alone cannot be read)"
        )
    base = _read_tokenizer(path)
    if not isinstance(base.model, BPE):
        kind = type(base.model).__name__
        raise ModelFileError(path, "model.type", kind, "only BPE is supported")
    config = _fields(folder / "tokenizer_config.json")
    texts = _special_texts(config)
    special = {name: _special_id(config, base, name, text) for name, text in texts.items()}
    added = _added_tokens(base, {special[name]: texts[name] for name in texts})
    size = max(base.get_vocab_size(), 1 + max(added, default=0))
    unknown = base.model.unk_token
    spelling, byte_fallback, strips_space = _decoding(path, base)
    prefix, suffix = _surrounding(base)
    bos, eos = special.get("bos_token"), special.get("eos_token")
    plain = encoder(base, added, path, at_start=True)
    return Vocabulary(
        plain=plain,
        inner=encoder(base, added, path, at_start=False) if marks_first_word(base) else plain,
        size=size,
        spelling=spelling,
        byte_fallback=byte_fallback,
        strips_leading_space=strips_space,
        added=added,
        unknown_id=None if unknown is None else base.token_to_id(unknown),
        bos_id=bos,
        eos_ids=_eos_ids(folder, eos, size),
        prefix_ids=_asked_for(config, "add_bos_token", bos, prefix),
        suffix_ids=_asked_for(config, "add_eos_token", eos, suffix),
        special_texts=texts,
        templates=_templates(folder, config),
    )


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelFileError(path, "file", None, f"is no tokenizer: {error}") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(path, "file", None, f"is not UTF-8: {error}") from error


def _fields(path: Path) -> Fields:
    """The fields of a JSON file; none when it is absent."""
    return Fields.from_json_file(path) if path.is_file() else Fields(path, {})


def _added_tokens(base: Tokenizer, special: Mapping[int, str]) -> dict[int, AddedToken]:
    """The added tokens by id, in order, with those that the configuration calls special."""
    added = {
        token_id: AddedToken(text, special=True, normalized=False)
        for token_id, text in special.items()
    }
    for token_id, token in base.get_added_tokens_decoder().items():
        is_control = token.special or token_id in special or looks_like_control(token.content)
        added[token_id] = AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=is_control,
        )
    return dict(sorted(added.items()))


def _special_texts(config: Fields) -> dict[str, str]:
    """bos_token and so on: a string each, or an object that holds it."""
    texts = {}
    for name in _SPECIAL_TOKENS:
        value = config.values.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise config.error(name, "must be a string or an object with a string content")
        texts[name] = value
    return texts


def _special_id(config: Fields, base: Tokenizer, name: str, text: str) -> int:
    token_id: int | None = base.token_to_id(text)
    if token_id is None:
        raise config.error(name, f"is not in the vocabulary of {_TOKENIZER}")
    return token_id


def _surrounding(base: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and behind a text."""
    base.no_padding()
    base.no_truncation()
    middle = base.encode("a", add_special_tokens=False).ids
    whole = base.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(middle) + 1):
        if whole[start : start + len(middle)] == middle:
            return tuple(whole[:start]), tuple(whole[start + len(middle) :])
    return (), ()


def _asked_for(
    config: Fields, flag: str, token_id: int | None, found: tuple[int, ...]
) -> tuple[int, ...]:
    """tokenizer_config.json overrules the post-processor where it says anything."""
    if not config.has(flag):
        return found
    if not config.flag(flag, False):
        return tuple(other for other in found if other != token_id)
    if token_id is None or token_id in found:
        return found
    return (token_id, *found)


def _eos_ids(folder: Path, eos: int | None, size: int) -> tuple[int, ...]:
    generation = _fields(folder / "generation_config.json")
    if not generation.has("eos_token_id"):
        generation = _fields(folder / "config.json")
    ids = generation.token_ids("eos_token_id", size)
    return tuple(dict.fromkeys((*(() if eos is None else (eos,)), *ids)))


def _decoding(path: Path, base: Tokenizer) -> tuple[Spelling, bool, bool]:
    """Spelling, whether tokens may be bytes, whether a leading space is dropped."""
    if base.decoder is None:
        raise ModelFileError(path, "decoder", None, "is missing")
    steps = list(_steps(json.loads(base.decoder.__getstate__())))
    kinds = [str(step.get("type")) for step in steps]
    if kinds == ["ByteLevel"]:
        return Spelling.BYTE_LEVEL, False, False
    marks = any(
        step.get("type") == "Metaspace"
        or (step.get("type") == "Replace" and step.get("pattern") == {"String": SPACE_MARK})
        for step in steps
    )
    if not marks or not set(kinds) <= {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}:
        raise ModelFileError(path, "decoder", kinds, "neither byte-level nor SentencePiece")
    strips = any(
        (step.get("type") == "Strip" and step.get("start"))
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in steps
    )
    return Spelling.SENTENCEPIECE, "ByteFallback" in kinds, strips


def _steps(decoder: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    nested = decoder.get("decoders")
    if not isinstance(nested, list):
        yield decoder
        return
    for step in nested:
        yield from _steps(step)


def _templates(folder: Path, config: Fields) -> dict[str, str]:
    """chat_template.jinja and additional_chat_templates/, else those in tokenizer_config.json."""
    files = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    templates = {file.stem: _read_text(file) for file in files}
    main = folder / "chat_template.jinja"
    if main.is_file():
        templates["default"] = _read_text(main)
    if templates:
        return templates
    value = config.values.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(
        isinstance(item, dict)
        and isinstance(item.get("name"), str)
        and isinstance(item.get("template"), str)
        for item in value
    ):
        return {item["name"]: item["template"] for item in value}
    raise config.error("chat_template", "must be a string or a list of names and templates")
