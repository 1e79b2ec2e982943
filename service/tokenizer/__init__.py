"""Text and token ids: the model's tokenizer, its chat template, streaming text, stop strings.

What needs the `tokenizers` library or Jinja is imported on first use, so that modules which
only stream text, and command lines, start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from service.tokenizer.errors import (
    ChatInputError,
    ChatTemplateError,
    ControlTokenInTextError,
    NoChatTemplateError,
    TokenizerError,
)
from service.tokenizer.incremental import IncrementalDetokenizer
from service.tokenizer.stops import StopMatcher

if TYPE_CHECKING:
    from service.tokenizer.chat_template import ChatLimits
    from service.tokenizer.load import load_tokenizer
    from service.tokenizer.tokenizer import ROLES, ChatMessage, Tokenizer

__all__ = [
    "ROLES",
    "ChatInputError",
    "ChatLimits",
    "ChatMessage",
    "ChatTemplateError",
    "ControlTokenInTextError",
    "IncrementalDetokenizer",
    "NoChatTemplateError",
    "StopMatcher",
    "Tokenizer",
    "TokenizerError",
    "load_tokenizer",
]

_HOMES = {
    "ROLES": "tokenizer",
    "ChatLimits": "chat_template",
    "ChatMessage": "tokenizer",
    "Tokenizer": "tokenizer",
    "load_tokenizer": "load",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
