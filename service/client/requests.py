"""Prompts and conversations as request messages."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.client.options import GenerationOptions

StreamRequest: TypeAlias = pb.GenerateStreamRequest | pb.ChatStreamRequest


class Role(enum.StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role | str
    content: str

    def to_proto(self) -> pb.ChatMessage:
        role = Role(self.role)
        return pb.ChatMessage(role=pb.Role.Value(f"ROLE_{role.name}"), content=self.content)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to answer; the server renders it with the model's chat template."""

    messages: Sequence[Message]
    tools_json: str = ""  # JSON array in the OpenAI format
    template_kwargs_json: str = ""  # JSON object
    continue_final_message: bool = False

    def to_proto(self) -> pb.Conversation:
        return pb.Conversation(
            messages=[message.to_proto() for message in self.messages],
            tools_json=self.tools_json,
            template_kwargs_json=self.template_kwargs_json,
            continue_final_message=self.continue_final_message,
        )


# Text is tokenized by the server; ids are used as they are.
Prompt: TypeAlias = str | Sequence[int] | Conversation


def stream_request(
    prompt: Prompt, options: GenerationOptions, *, model: str, request_id: str
) -> StreamRequest:
    """The streaming request for a prompt of any kind."""
    proto = options.to_proto()
    if isinstance(prompt, Conversation):
        return pb.ChatStreamRequest(
            model=model, request_id=request_id, conversation=prompt.to_proto(), options=proto
        )
    request = pb.GenerateStreamRequest(model=model, request_id=request_id, options=proto)
    _set_prompt(request, prompt)
    return request


def unary_request(
    prompt: Prompt, options: GenerationOptions, *, model: str, request_id: str
) -> pb.GenerateRequest | pb.ChatRequest:
    """The unary request for a prompt of any kind."""
    proto = options.to_proto()
    if isinstance(prompt, Conversation):
        return pb.ChatRequest(
            model=model, request_id=request_id, conversation=prompt.to_proto(), options=proto
        )
    request = pb.GenerateRequest(model=model, request_id=request_id, options=proto)
    _set_prompt(request, prompt)
    return request


def tokenize_request(prompt: str | Conversation, *, model: str) -> pb.TokenizeRequest:
    """Asks for the ids that the prompt would have in a generating request."""
    if isinstance(prompt, Conversation):
        return pb.TokenizeRequest(model=model, conversation=prompt.to_proto())
    return pb.TokenizeRequest(model=model, text=prompt)


def _set_prompt(
    request: pb.GenerateRequest | pb.GenerateStreamRequest, prompt: str | Sequence[int]
) -> None:
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.CopyFrom(pb.TokenIds(ids=prompt))
