"""Reads the prompt of a request: text, ids or a conversation, into checked token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from service.api.checks import Checks
from service.api.conversation import check_conversation, tokenizer_fault
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.validation import (
    CheckedOptions,
    ServingLimits,
    check_prompt_ids,
    take_prompt_ids,
)
from service.front.front import Front
from service.tokenizer.errors import TokenizerError

GeneratingRequest: TypeAlias = (
    pb.GenerateRequest | pb.GenerateStreamRequest | pb.ChatRequest | pb.ChatStreamRequest
)


def continues_text(request: GeneratingRequest) -> bool:
    """Whether the output goes on in the middle of a text, or begins one of its own."""
    if isinstance(request, pb.ChatRequest | pb.ChatStreamRequest):
        return request.conversation.continue_final_message
    return True


class PromptReader:
    """Tokenizes through the front; what the tokenizer refuses is the client's fault."""

    def __init__(self, front: Front, max_chat_messages: int) -> None:
        self._front = front
        self._max_chat_messages = max_chat_messages

    async def text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raises InvalidRequest."""
        try:
            return await self._front.encode(text, add_special_tokens=add_special_tokens)
        except TokenizerError as error:
            raise tokenizer_fault(error, "text") from error

    async def conversation(self, conversation: pb.Conversation) -> list[int]:
        """Raises InvalidRequest, and FeatureDisabled when the model has no chat template."""
        checked = check_conversation(conversation, self._max_chat_messages)
        try:
            return await self._front.encode_chat(
                checked.messages,
                tools=checked.tools,
                template_kwargs=checked.template_kwargs,
                continue_final_message=checked.continue_final_message,
            )
        except TokenizerError as error:
            raise tokenizer_fault(error, "conversation") from error

    async def prompt(
        self, request: GeneratingRequest, options: CheckedOptions, limits: ServingLimits
    ) -> list[int]:
        """The ids to compute; raises also ContextLengthExceeded."""
        ids: Sequence[int]
        if isinstance(request, pb.ChatRequest | pb.ChatStreamRequest):
            path, ids = "conversation", await self.conversation(request.conversation)
        else:
            match request.WhichOneof("prompt"):
                case "text":
                    path, ids = "text", await self.text(request.text)
                case "token_ids":
                    path, ids = "token_ids.ids", request.token_ids.ids
                case None:
                    checks = Checks()
                    checks.refuse("prompt", None, "must be text or token_ids")
                    checks.finish()
        kept = take_prompt_ids(ids, options, limits)
        check_prompt_ids(kept, path, limits)
        return kept
