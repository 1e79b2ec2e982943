"""What a caller can do wrong with text and conversations."""

from __future__ import annotations


class TokenizerError(Exception):
    """Base of the errors below: the request is at fault, the server stays healthy."""


class NoChatTemplateError(TokenizerError):
    """The model brings no chat template, so a conversation cannot be rendered."""

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(f"model {model} has no chat template")


class ChatTemplateError(TokenizerError):
    """The model's template refused the conversation, or failed on it. `message` is its own."""

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(f"the chat template refuses the conversation: {message}")


class ChatInputError(TokenizerError):
    """A field of the conversation is out of bounds, before any template saw it."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field = field
        self.value = value
        self.reason = reason
        shown = repr(value)
        if len(shown) > 100:
            shown = shown[:100] + "…"
        super().__init__(f"{field} = {shown}: {reason}")


class ControlTokenInTextError(TokenizerError):
    """Plain text encodes to a control token, and splitting it does not help.

    Only a vocabulary whose normalizer or merges spell a control token can do this.
    """

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        super().__init__(f"the text encodes to the control tokens {token_ids}, which it must not")
