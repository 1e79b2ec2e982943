"""The figures of one answer, as the client saw them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from service.client import Chunk, GenerationStream


@dataclass(slots=True)
class AnswerClock:
    """Measures one streamed answer from the moment it is made."""

    begin_seconds: float = field(default_factory=time.monotonic)
    first_seconds: float | None = None
    last_seconds: float | None = None
    tokens: int = 0
    first_tokens: int = 0  # tokens of the first message

    def record(self, chunk: Chunk) -> None:
        """Notes the arrival of a chunk."""
        if not chunk.token_ids:
            return
        self.last_seconds = time.monotonic()
        if self.first_seconds is None:
            self.first_seconds = self.last_seconds
            self.first_tokens = len(chunk.token_ids)
        self.tokens += len(chunk.token_ids)

    @property
    def ttft_seconds(self) -> float | None:
        """Time to the first token; None before it."""
        return None if self.first_seconds is None else self.first_seconds - self.begin_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Rate after the first message; None when there was nothing after it."""
        later = self.tokens - self.first_tokens
        if self.first_seconds is None or self.last_seconds is None or later == 0:
            return None
        return later / max(self.last_seconds - self.first_seconds, 1e-9)

    def summary(self, stream: GenerationStream) -> str:
        """One line for people."""
        parts = [_count(self.tokens, "token")]
        if self.ttft_seconds is not None:
            parts.append(f"first after {self.ttft_seconds * 1e3:.0f} ms")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        if stream.usage is not None:
            prompt, cached = stream.usage.prompt_tokens, stream.usage.cached_prompt_tokens
            parts.append(f"prompt {_count(prompt, 'token')}, {cached} cached")
        if stream.resumptions:
            parts.append(f"resumed {_count(stream.resumptions, 'time')}")
        return " · ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
