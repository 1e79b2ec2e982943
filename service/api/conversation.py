"""From a Conversation message to what the tokenizer renders. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.api.checks import Checks
from service.api.errors import ApiError, FeatureDisabled, FieldViolation, InvalidRequest
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.tokenizer.errors import ChatInputError, NoChatTemplateError, TokenizerError

if TYPE_CHECKING:
    from service.tokenizer import ChatMessage

MAX_TOOLS_BYTES = 256 * 1024
MAX_TEMPLATE_KWARGS_BYTES = 64 * 1024

_ROLES = {
    pb.ROLE_SYSTEM: "system",
    pb.ROLE_USER: "user",
    pb.ROLE_ASSISTANT: "assistant",
    pb.ROLE_TOOL: "tool",
}


@dataclass(slots=True, frozen=True)
class CheckedConversation:
    """Arguments of `encode_chat`."""

    messages: list[ChatMessage]
    tools: list[object] | None
    template_kwargs: dict[str, Any] | None
    continue_final_message: bool


def check_conversation(conversation: pb.Conversation, max_messages: int) -> CheckedConversation:
    """Raises InvalidRequest; what only the template can judge is left to it."""
    # Brings Jinja and the tokenizer library, which the front loads while it starts.
    from service.tokenizer import ChatMessage

    checks = Checks("conversation.")
    messages: list[ChatMessage] = []
    if checks.count("messages", conversation.messages, 1, max_messages):
        for index, message in enumerate(conversation.messages):
            role = _ROLES.get(message.role)
            if role is None:
                limit = "must be ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT or ROLE_TOOL"
                checks.refuse(f"messages[{index}].role", message.role, limit)
            else:
                messages.append(
                    ChatMessage(role, message.content, message.name, message.tool_call_id)
                )
    tools = checks.json_value("tools_json", conversation.tools_json, list, MAX_TOOLS_BYTES)
    template_kwargs = checks.json_value(
        "template_kwargs_json", conversation.template_kwargs_json, dict, MAX_TEMPLATE_KWARGS_BYTES
    )
    checks.finish()
    return CheckedConversation(
        messages, tools, template_kwargs, conversation.continue_final_message
    )


def tokenizer_fault(error: TokenizerError, path: str) -> ApiError:
    """What the API says about input that the tokenizer refused; `path` is the input."""
    if isinstance(error, NoChatTemplateError):
        return FeatureDisabled(path)
    if isinstance(error, ChatInputError):
        return InvalidRequest([FieldViolation(error.field, error.value, error.reason)])
    return InvalidRequest([FieldViolation(path, "…", str(error))])
