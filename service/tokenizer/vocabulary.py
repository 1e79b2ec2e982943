"""What the loaders hand over: a vocabulary that encodes plain text, and its special ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from service.models.errors import ModelFileError
from service.tokenizer.token_bytes import Spelling

_MAX_CONTROL_TOKEN_CHARS = 128  # the pattern that finds them nests as deep
_CONTROL_LIKE = re.compile(r"<\|.+\|>|<｜.+｜>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All that `Tokenizer` needs to know. Neither encoder ever matches a control token."""

    plain: Tokenizer  # encodes text at the start of a prompt
    inner: Tokenizer  # encodes text behind a control token; often the same object
    size: int
    spelling: Spelling
    byte_fallback: bool  # tokens such as <0x0A> are bytes
    strips_leading_space: bool
    added: Mapping[int, AddedToken]  # meant literally; the special ones are control tokens
    unknown_id: int | None  # stands for text that the vocabulary cannot spell; None: it can
    bos_id: int | None
    eos_ids: tuple[int, ...]
    prefix_ids: tuple[int, ...]  # put before a prompt
    suffix_ids: tuple[int, ...]  # put behind a prompt
    special_texts: Mapping[str, str]  # bos_token and so on, as templates know them
    templates: Mapping[str, str]  # chat templates by name; empty: none


def encoder(
    base: Tokenizer, added: Mapping[int, AddedToken], path: Path, *, at_start: bool
) -> Tokenizer:
    """An encoder over the model of `base` that takes control tokens for plain text.

    The model, by far the largest part, is shared and not copied. `added` comes in the
    order of ids. `at_start=False`: text does not get the space that SentencePiece puts
    before the first word of a text.
    """
    view = Tokenizer(base.model)
    if base.normalizer is not None:
        view.normalizer = base.normalizer
    if base.pre_tokenizer is not None:
        view.pre_tokenizer = base.pre_tokenizer if at_start else _without_first_space(base)
    for token_id, token in added.items():
        if token.special and len(token.content) > _MAX_CONTROL_TOKEN_CHARS:
            limit = f"a control token has at most {_MAX_CONTROL_TOKEN_CHARS} characters"
            raise ModelFileError(path, f"token {token_id}", token.content, limit)
        view.add_tokens([token])
        if view.token_to_id(token.content) != token_id:
            reason = f"added tokens are not numbered without gaps: {token_id} expected"
            raise ModelFileError(path, "added_tokens", token.content, reason)
    view.encode_special_tokens = True
    return view


def looks_like_control(text: str) -> bool:
    """Whether an added token is written like a control token.

    Many models declare their role markers as ordinary added tokens. They are control tokens
    all the same: text of users must not contain them, and output does not show them.
    """
    return _CONTROL_LIKE.fullmatch(text) is not None


def marks_first_word(base: Tokenizer) -> bool:
    """Whether text is spelt otherwise at the start of a prompt than behind a control token."""
    return base.pre_tokenizer is not None and b'"prepend_scheme":"first"' in _state(base)


def _state(base: Tokenizer) -> bytes:
    state: bytes = base.pre_tokenizer.__getstate__()
    return state


def _without_first_space(base: Tokenizer) -> pre_tokenizers.PreTokenizer | None:
    """The pre-tokenizer, with `prepend_scheme` "first" set to "never" wherever it occurs.

    Pre-tokenizers can be built from JSON only as a part of a whole tokenizer.
    """
    state = _state(base).replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"')
    shell = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": json.loads(state),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    spaceless: pre_tokenizers.PreTokenizer | None = Tokenizer.from_str(
        json.dumps(shell)
    ).pre_tokenizer
    return spaceless
