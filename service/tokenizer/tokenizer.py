"""Text to token ids and back. Knows nothing of files; `load_tokenizer` makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.tokenizer import incremental
from service.tokenizer.chat_template import ChatTemplate
from service.tokenizer.control_tokens import ControlToken, ControlTokens, Marker
from service.tokenizer.errors import (
    ChatInputError,
    ChatTemplateError,
    ControlTokenInTextError,
    NoChatTemplateError,
)
from service.tokenizer.token_bytes import ordinary_token_bytes
from service.tokenizer.vocabulary import Vocabulary

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. Empty `name` and `tool_call_id` mean: none."""

    role: str  # one of ROLES
    content: str
    name: str = ""
    tool_call_id: str = ""


class Tokenizer:
    """Encodes prompts and conversations, decodes tokens. Safe to share between threads.

    Text of users never yields a control token: neither in `encode`, whatever the text is,
    nor inside a conversation, where only the model's template writes them.
    """

    def __init__(self, model: str, vocabulary: Vocabulary, template: ChatTemplate | None) -> None:
        """`model` is the name that errors show."""
        self._model = model
        self._template = template
        self._vocabulary = vocabulary
        self._literal = {
            token_id: token.content.encode() for token_id, token in vocabulary.added.items()
        }
        control = {token_id: token for token_id, token in vocabulary.added.items() if token.special}
        self._control = ControlTokens(
            ControlToken(token_id, token.content, token.lstrip, token.rstrip)
            for token_id, token in control.items()
        )
        self._special_ids = frozenset(control)
        self._forbidden_ids = self._special_ids - {vocabulary.unknown_id}

    @property
    def vocab_size(self) -> int:
        """Highest token id plus one."""
        return self._vocabulary.size

    @property
    def bos_id(self) -> int | None:
        """The token that begins a sequence, if the model has one."""
        return self._vocabulary.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a generation, the model's main one first."""
        return self._vocabulary.eos_ids

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return self._template is not None

    @property
    def strips_leading_space(self) -> bool:
        """Whether decoding drops the space that encoding put before the first word."""
        return self._vocabulary.strips_leading_space

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which text does not show."""
        return token_id in self._special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, control tokens as their text.

        Empty for an id without a token: models pad their vocabulary, and may sample there.
        """
        literal = self._literal.get(token_id)
        if literal is not None:
            return literal
        vocabulary = self._vocabulary
        text: str | None = vocabulary.plain.id_to_token(token_id)
        if text is None:
            return b""
        return ordinary_token_bytes(text, vocabulary.spelling, vocabulary.byte_fallback)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain text, with BOS (and EOS) around it where the model wants them.

        Raises ControlTokenInTextError where the vocabulary leaves no other way.
        """
        ids = self._encode_plain(text, at_start=True)
        if add_special_tokens:
            ids = [*self._vocabulary.prefix_ids, *ids, *self._vocabulary.suffix_ids]
        return ids

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[object] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Token ids of a conversation, up to where the assistant's (next) words begin.

        `tools` is a JSON array, `template_kwargs` a JSON object of further variables of the
        template. `continue_final_message` leaves the last message, which must be the
        assistant's, open to be continued. Exactly one BOS leads where the model wants one,
        whether or not the template writes it; a model that wants none keeps what the
        template wrote.

        Raises NoChatTemplateError, ChatInputError, ChatTemplateError.
        """
        if self._template is None:
            raise NoChatTemplateError(self._model)
        plain = [_as_mapping(index, message) for index, message in enumerate(messages)]
        marker = Marker(
            self._control,
            {
                "conversation.messages": plain,
                "conversation.tools": tools,
                "conversation.template_kwargs": template_kwargs,
            },
        )
        shown = [_disarmed_message(marker, message) for message in plain]
        tail = marker.mark * 2 + " "
        if continue_final_message:
            if not shown or shown[-1]["role"] != "assistant":
                role = shown[-1]["role"] if shown else None
                reason = "only a last message of the assistant can be continued"
                raise ChatInputError("conversation.messages[-1].role", role, reason)
            shown[-1]["content"] += tail
        rendered = self._template.render(
            shown,
            tools=None if not tools else [marker.disarmed(tool) for tool in tools],
            template_kwargs={
                name: marker.disarmed(value) for name, value in (template_kwargs or {}).items()
            },
            add_generation_prompt=not continue_final_message,
        )
        if continue_final_message:
            rendered = _cut_at(rendered, tail)
        return self._encode_rendered(rendered, marker)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole token sequence; bytes that are no UTF-8 become U+FFFD."""
        return incremental.decode(self, ids, skip_special)

    def _encode_rendered(self, rendered: str, marker: Marker) -> list[int]:
        ids: list[int] = []
        for piece in self._control.split(rendered):
            if isinstance(piece, ControlToken):
                ids.append(piece.token_id)
            else:
                ids += self._encode_plain(marker.removed(piece), at_start=not ids)
        prefix = self._vocabulary.prefix_ids
        if prefix and ids[: len(prefix)] != list(prefix):
            ids = [*prefix, *ids]
        return ids

    def _encode_plain(self, text: str, *, at_start: bool) -> list[int]:
        encoder = self._vocabulary.plain if at_start else self._vocabulary.inner
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        if self._forbidden_ids.isdisjoint(ids):
            return ids
        # The merges spell a control token: cut the text inside each of them.
        first, *others = self._control.cut(text)
        ids = list(encoder.encode(first, add_special_tokens=False).ids)
        for part in others:
            ids += self._vocabulary.inner.encode(part, add_special_tokens=False).ids
        found = sorted(self._forbidden_ids.intersection(ids))
        if found:
            raise ControlTokenInTextError(found)
        return ids


def _as_mapping(index: int, message: ChatMessage) -> dict[str, str]:
    if message.role not in ROLES:
        field = f"conversation.messages[{index}].role"
        raise ChatInputError(field, message.role, f"must be one of {', '.join(ROLES)}")
    mapping = {"role": message.role, "content": message.content}
    if message.name:
        mapping["name"] = message.name
    if message.tool_call_id:
        mapping["tool_call_id"] = message.tool_call_id
    return mapping


def _disarmed_message(marker: Marker, message: Mapping[str, str]) -> dict[str, str]:
    """Roles stay as they are: they are ours, and templates build control tokens from them."""
    return {
        key: value if key == "role" else marker.disarmed_text(value)
        for key, value in message.items()
    }


def _cut_at(rendered: str, tail: str) -> str:
    """What was rendered before the tail; the tail shows by its space whether it was trimmed."""
    position = rendered.rfind(tail.rstrip())
    if position < 0:
        raise ChatTemplateError("it drops the end of the message that should be continued")
    kept = rendered[:position]
    return kept if rendered.startswith(tail, position) else kept.rstrip()
