"""Async Python client of a Plimsoll server."""

from service.client.client import DEFAULT_ADMIN_TARGET, DEFAULT_TARGET, PlimsollClient
from service.client.errors import FieldViolation, PlimsollError, StreamBroken
from service.client.options import GenerationOptions
from service.client.outputs import (
    Candidate,
    Chunk,
    FinishReason,
    Generation,
    Start,
    Timings,
    Tokenization,
    TokenLogprob,
    Usage,
)
from service.client.requests import Conversation, Message, Role
from service.client.retry import NO_RETRY, PATIENT, RetryPolicy
from service.client.stream import GenerationStream

__all__ = [
    "DEFAULT_ADMIN_TARGET",
    "DEFAULT_TARGET",
    "NO_RETRY",
    "PATIENT",
    "Candidate",
    "Chunk",
    "Conversation",
    "FieldViolation",
    "FinishReason",
    "Generation",
    "GenerationOptions",
    "GenerationStream",
    "Message",
    "PlimsollClient",
    "PlimsollError",
    "RetryPolicy",
    "Role",
    "Start",
    "StreamBroken",
    "Timings",
    "TokenLogprob",
    "Tokenization",
    "Usage",
]
