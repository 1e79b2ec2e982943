"""Loads the tokenizer that comes with a model."""

from __future__ import annotations

import jinja2

from service.models.errors import ModelFileError
from service.models.gguf_metadata import read_gguf_metadata
from service.models.source import ModelKind, ModelSource
from service.tokenizer.chat_template import ChatLimits, ChatTemplate
from service.tokenizer.gguf_vocabulary import gguf_vocabulary
from service.tokenizer.hf_vocabulary import hf_vocabulary
from service.tokenizer.tokenizer import Tokenizer
from service.tokenizer.vocabulary import Vocabulary


def load_tokenizer(source: ModelSource, limits: ChatLimits | None = None) -> Tokenizer:
    """Builds the tokenizer of a model; `limits` bound what chat templates render.

    Raises ModelFileError when the files lack a tokenizer, or have one that cannot be used.
    """
    if source.kind is ModelKind.GGUF:
        vocabulary = gguf_vocabulary(source.path, read_gguf_metadata(source.path))
    else:
        vocabulary = hf_vocabulary(source.path)
    return Tokenizer(source.name, vocabulary, _template(source, vocabulary, limits or ChatLimits()))


def _template(
    source: ModelSource, vocabulary: Vocabulary, limits: ChatLimits
) -> ChatTemplate | None:
    if not vocabulary.templates:
        return None
    try:
        return ChatTemplate(vocabulary.templates, vocabulary.special_texts, limits)
    except jinja2.TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
        raise ModelFileError(source.path, "chat_template", error.name, reason) from error
    except ValueError as error:
        names = sorted(vocabulary.templates)
        raise ModelFileError(source.path, "chat_template", names, str(error)) from error
