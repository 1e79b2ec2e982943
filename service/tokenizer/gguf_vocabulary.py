"""Builds a vocabulary from the metadata of a GGUF file.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md ("Tokenizer"). Two kinds
are known: "gpt2", byte-level BPE, and "llama", the BPE of SentencePiece.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import BPE

from service.models.errors import ModelFileError
from service.models.fields import Fields
from service.tokenizer.pretokenizers import PRE_TOKENIZER_RULES
from service.tokenizer.token_bytes import SPACE_MARK, Spelling
from service.tokenizer.vocabulary import Vocabulary, encoder, looks_like_control

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"


class _TokenType(enum.IntEnum):
    """Values of tokenizer.ggml.token_type; those of SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def gguf_vocabulary(path: Path, metadata: Mapping[str, object]) -> Vocabulary:
    """Builds the vocabulary; raises ModelFileError naming the key at fault."""
    fields = Fields(path, metadata, _PREFIX)
    tokens = _tokens(fields)
    types = _token_types(fields, len(tokens))
    kind = fields.text("model")
    build = _MODELS.get(kind)
    if build is None:
        known = ", ".join(sorted(_MODELS))
        raise fields.error("model", f"unknown kind of tokenizer; known are {known}")
    bos = fields.token_ids("bos_token_id", len(tokens))
    eos = fields.token_ids("eos_token_id", len(tokens))
    eot = fields.token_ids("eot_token_id", len(tokens))
    eom = fields.token_ids("eom_token_id", len(tokens))
    # Many files call some of these ordinary.
    for token_id in (*bos, *eos, *eot, *eom, *_disguised(tokens, types)):
        types[token_id] = _TokenType.CONTROL
    model = build(fields, tokens, types)
    added = {
        token_id: AddedToken(tokens[token_id], special=special, normalized=False)
        for token_id, special in _literal_tokens(types)
    }
    plain = encoder(model.base, added, path, at_start=True)
    return Vocabulary(
        plain=plain,
        inner=plain,
        size=len(tokens),
        spelling=model.spelling,
        byte_fallback=_TokenType.BYTE in types,
        strips_leading_space=model.strips_leading_space,
        added=added,
        unknown_id=model.unknown_id,
        bos_id=bos[0] if bos else None,
        eos_ids=tuple(dict.fromkeys((*eos, *eot, *eom))),
        prefix_ids=bos[:1] if fields.flag("add_bos_token", model.adds_bos) else (),
        suffix_ids=eos[:1] if fields.flag("add_eos_token", False) else (),
        special_texts=_special_texts(fields, tokens),
        templates=_templates(Fields(path, metadata)),
    )


@dataclass(frozen=True, slots=True)
class _Model:
    """What differs between the kinds of tokenizers."""

    base: Tokenizer
    spelling: Spelling
    adds_bos: bool  # when the file does not say
    strips_leading_space: bool
    unknown_id: int | None


def _byte_level(fields: Fields, tokens: Sequence[str], types: Sequence[int]) -> _Model:
    del types  # decide nothing here
    rule = PRE_TOKENIZER_RULES.get(fields.text("pre", "default"))
    if rule is None:
        known = ", ".join(sorted(PRE_TOKENIZER_RULES))
        raise fields.error("pre", f"unknown pre-tokenizer; known are {known}")
    ids = _ids(tokens)
    base = Tokenizer(BPE(ids, _merges(fields, ids), ignore_merges=rule.ignore_merges))
    base.pre_tokenizer = rule.build()
    return _Model(
        base, Spelling.BYTE_LEVEL, rule.adds_bos, strips_leading_space=False, unknown_id=None
    )


def _sentencepiece(fields: Fields, tokens: Sequence[str], types: Sequence[int]) -> _Model:
    adds_space = fields.flag("add_space_prefix", True)
    unknown = next(iter(fields.token_ids("unknown_token_id", len(tokens))), None)
    base = Tokenizer(
        BPE(
            _ids(tokens),
            sentencepiece_merges(tokens, _values(fields, "scores", float, len(tokens)), types),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=_TokenType.BYTE in types,
        )
    )
    replace = normalizers.Replace(" ", SPACE_MARK)
    base.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE_MARK), replace]) if adds_space else replace
    )
    return _Model(
        base,
        Spelling.SENTENCEPIECE,
        adds_bos=True,
        strips_leading_space=adds_space,
        unknown_id=unknown,
    )


_MODELS: Mapping[str, Callable[[Fields, Sequence[str], Sequence[int]], _Model]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def sentencepiece_merges(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """The merges that the scores of a SentencePiece BPE vocabulary stand for, best first.

    SentencePiece merges the neighbours whose union scores highest; a list of pairs ordered
    by that score does the same. Control, unknown and byte tokens are never merged into.
    """
    score = {
        token: scores[token_id]
        for token_id, token in enumerate(tokens)
        if types[token_id] == _TokenType.NORMAL
    }
    merges = [
        (value, len(left), len(right), left, right)
        for token, value in score.items()
        for left, right in _halves(token)
        if left in score and right in score
    ]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for _, _, _, left, right in merges]


def _halves(token: str) -> Iterator[tuple[str, str]]:
    for middle in range(1, len(token)):
        yield token[:middle], token[middle:]


def _disguised(tokens: Sequence[str], types: Sequence[int]) -> list[int]:
    return [
        token_id
        for token_id, kind in enumerate(types)
        if kind == _TokenType.USER_DEFINED and looks_like_control(tokens[token_id])
    ]


def _literal_tokens(types: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """The tokens whose text is no spelling of bytes, and whether each is a control token."""
    for token_id, kind in enumerate(types):
        if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN, _TokenType.USER_DEFINED):
            yield token_id, kind != _TokenType.USER_DEFINED


def _special_texts(fields: Fields, tokens: Sequence[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    texts = {}
    for name, key in keys.items():
        for token_id in fields.token_ids(f"{key}_token_id", len(tokens)):
            texts[name] = tokens[token_id]
    return texts


def _templates(fields: Fields) -> dict[str, str]:
    """The default template and the named ones, `tokenizer.chat_template.NAME`."""
    templates = {}
    if fields.has(_TEMPLATE):
        templates["default"] = fields.text(_TEMPLATE)
    for key in fields.values:
        if key.startswith(f"{_TEMPLATE}."):
            templates[key.removeprefix(f"{_TEMPLATE}.")] = fields.text(key)
    return templates


def _merges(fields: Fields, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in _values(fields, "merges", str):
        left, space, right = merge.partition(" ")
        if not space or left not in ids or right not in ids or left + right not in ids:
            reason = "must be two tokens, parted by a space, whose union is a token"
            raise ModelFileError(fields.path, f"{_PREFIX}merges", merge, reason)
        merges.append((left, right))
    return merges


def _tokens(fields: Fields) -> list[str]:
    tokens = _values(fields, "tokens", str)
    if not tokens:
        raise fields.error("tokens", "is empty")
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise ModelFileError(fields.path, f"{_PREFIX}tokens", token, "occurs twice")
        seen.add(token)
    return tokens


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def _token_types(fields: Fields, count: int) -> list[int]:
    if not fields.has("token_type"):
        return [_TokenType.NORMAL] * count
    return list(_values(fields, "token_type", int, count))


_Value = TypeVar("_Value", str, int, float)


def _values(fields: Fields, name: str, kind: type[_Value], count: int = 0) -> list[_Value]:
    """A list with at least `count` values; an array of GGUF holds one type."""
    length = fields.length(name)
    if length < count:
        reason = f"one for each of the {count} tokens is needed"
        raise ModelFileError(fields.path, f"length of {_PREFIX}{name}", length, reason)
    values = fields.values[_PREFIX + name]
    if not isinstance(values, list) or (values and type(values[0]) is not kind):
        raise fields.error(name, f"must be a list of {kind.__name__}")
    return values
