"""Text and token ids: the model's tokenizer, its chat template, streaming text, stop strings."""

from service.tokenizer.chat_template import ChatLimits
from service.tokenizer.errors import (
    ChatInputError,
    ChatTemplateError,
    ControlTokenInTextError,
    NoChatTemplateError,
    TokenizerError,
)
from service.tokenizer.incremental import IncrementalDetokenizer
from service.tokenizer.load import load_tokenizer
from service.tokenizer.stops import StopMatcher
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
