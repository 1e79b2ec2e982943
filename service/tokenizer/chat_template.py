"""Renders conversations with the chat template that a model brings.

Templates are Jinja in the dialect of Hugging Face ("Chat templates", transformers
documentation). They come with model files, so they run in Jinja's immutable sandbox, and
the conversation they see is plain JSON-like data. What they write is bounded (`ChatLimits`),
and so is one `range` (100,000, by the sandbox). Their time is not: nested loops that write
nothing, or a power of a string, can hold a thread for as long as they like. A template is
chosen by who runs the server, as the weights are; clients only fill it in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from service.tokenizer.errors import ChatInputError, ChatTemplateError

# What a template can do wrong at run time; anything else is a bug of ours.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
# Private-use characters stay as they are even in ASCII-only JSON: they mark what must not
# become a control token (control_tokens.py), and an escaped mark would stay in the prompt.
_TO_ESCAPE = re.compile("[^\x00-\x7f\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd]")

_GIVEN = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """Bounds of what a template may be asked to render, and of what it may answer."""

    max_messages: int = 4096
    max_rendered_bytes: int = 4 << 20


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks training data; serving renders its body."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it as an instance variable)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """The compiled templates of a model: the default one, and maybe one for tools."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str], limits: ChatLimits
    ) -> None:
        """`templates`: source by name, of which "default" or the only one is used without tools.

        Raises jinja2.TemplateSyntaxError for a template that does not compile, ValueError
        when there are several and none is called "default".
        """
        environment = _environment()
        self._templates = {
            name: environment.from_string(source) for name, source in templates.items()
        }
        if "default" not in self._templates:
            if len(self._templates) != 1:
                raise ValueError("none of several templates is called 'default'")
            self._templates["default"] = next(iter(self._templates.values()))
        self._special_tokens = dict(special_tokens)
        self._reserved = frozenset({*_GIVEN, *_SPECIAL, *environment.globals})
        self._limits = limits

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[object] | None,
        template_kwargs: Mapping[str, object],
        add_generation_prompt: bool,
    ) -> str:
        """Renders; raises ChatInputError for bad input, ChatTemplateError as the template says."""
        self._check(messages, template_kwargs)
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        variables = {
            **template_kwargs,
            **self._special_tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        pieces, size_bytes = [], 0
        try:
            for piece in self._templates[name].generate(variables):
                pieces.append(piece)
                size_bytes += len(piece.encode())
                if size_bytes > self._limits.max_rendered_bytes:
                    break
        except _TEMPLATE_FAILURES as error:
            raise ChatTemplateError(str(error) or type(error).__name__) from error
        if size_bytes > self._limits.max_rendered_bytes:
            limit = self._limits.max_rendered_bytes
            raise ChatInputError("conversation", size_bytes, f"renders to over {limit} bytes")
        return "".join(pieces)

    def _check(
        self, messages: Sequence[Mapping[str, object]], template_kwargs: Mapping[str, object]
    ) -> None:
        if not messages:
            raise ChatInputError("conversation.messages", len(messages), "at least one is needed")
        if len(messages) > self._limits.max_messages:
            limit = self._limits.max_messages
            raise ChatInputError("conversation.messages", len(messages), f"the limit is {limit}")
        for name in template_kwargs:
            if name in self._reserved:
                raise ChatInputError(
                    "conversation.template_kwargs", name, "is set by the server alone"
                )


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if not ensure_ascii:
        return text
    escape: Callable[[re.Match[str]], str] = lambda match: json.dumps(match[0])[1:-1]  # noqa: E731
    return _TO_ESCAPE.sub(escape, text)
