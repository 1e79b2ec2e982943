"""The RPCs that one streamed answer is made of, and how each joins the one before.

A stream that does not break is one segment. After a break the next segment continues the
answer or replays it, see `service.client.resume`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.client.connection import Connection, Deadline
from service.client.options import GenerationOptions
from service.client.outputs import Chunk, Start, Usage
from service.client.requests import Conversation, Prompt, tokenize_request
from service.client.resume import (
    Diverged,
    Received,
    Seam,
    can_continue,
    continued_options,
)

# A UTF-8 character has at most 4 bytes, so at most 3 tokens wait for its last byte.
_MAX_TOKENS_BACK = 3


@dataclass(slots=True)
class Segment:
    """One RPC of the stream."""

    prompt: Prompt
    options: GenerationOptions
    seams: dict[int, Seam] = field(default_factory=dict)  # by candidate
    kept_ids: list[int] = field(default_factory=list)  # output tokens at the end of the prompt
    repeated_tokens: int = 0  # received tokens that are decoded a second time

    def check_start(self, start: Start, first: Start) -> None:
        """Raises Diverged when another model or another prompt would answer."""
        if start.model != first.model:
            raise Diverged(f"the model changed from {first.model} to {start.model}")
        expected = first.prompt_tokens + len(self.kept_ids)
        if start.prompt_tokens != expected:
            raise Diverged(f"the prompt has {start.prompt_tokens} tokens, not {expected}")

    def unseen(self, chunk: Chunk) -> Chunk:
        """What the caller does not have yet of a chunk; raises Diverged."""
        seam = self.seams.get(chunk.index)
        if seam is None:
            return chunk
        token_ids = seam.new_tokens(chunk.token_ids)
        text = seam.new_text(chunk.text)
        if chunk.finish_reason is not None and not seam.is_closed:
            raise Diverged("the answer is now shorter than what was received")
        seen = len(chunk.token_ids) - len(token_ids)
        return replace(chunk, text=text, token_ids=token_ids, logprobs=chunk.logprobs[seen:])

    def whole_usage(self, own: Usage, first: Start) -> Usage:
        """The usage of the whole answer, when this resumed segment ended it."""
        prefilled = own.prompt_tokens - own.cached_prompt_tokens
        return Usage(
            prompt_tokens=first.prompt_tokens,
            completion_tokens=len(self.kept_ids) + own.completion_tokens,
            cached_prompt_tokens=first.cached_prompt_tokens,
            recomputed_tokens=own.recomputed_tokens + prefilled + self.repeated_tokens,
        )


class SegmentPlanner:
    """Makes the segments of one request; asks the server what it needs to know for that."""

    def __init__(
        self,
        connection: Connection,
        prompt: Prompt,
        options: GenerationOptions,
        deadline: Deadline,
    ) -> None:
        self._connection = connection
        self._prompt = prompt
        self._options = options
        self._deadline = deadline

    def first(self) -> Segment:
        """The request as the caller made it."""
        return Segment(self._prompt, self._options)

    async def resumed(self, first: Start, received: dict[int, Received]) -> Segment:
        """The cheapest exact way on from what was received.

        Raises:
            AioRpcError: the server is not back yet.
        """
        if can_continue(await self._options_in_force(), received):
            continuation = await self._continuation(first, received[0])
            if continuation is not None:
                return continuation
        return self._replay(first, received)

    async def _continuation(self, first: Start, received: Received) -> Segment | None:
        """Prompt plus received tokens as the prompt; None when they cannot be joined."""
        prompt_ids = await self._prompt_ids()
        if len(prompt_ids) != first.prompt_tokens:
            return None
        token_ids, text = received.token_ids, received.text
        for back in range(min(_MAX_TOKENS_BACK + 1, len(token_ids))):
            kept = token_ids[: len(token_ids) - back]
            kept_text = await self._detokenize(kept)
            # Detokenize takes the ids for a text of its own, and SentencePiece drops a space in
            # front of that; a completion, which goes on with a text, kept it.
            start = len(kept_text) + text.startswith(" " + kept_text)
            # Where it ends inside a character it ends with U+FFFD: go one token back.
            if text[:start].endswith(kept_text):
                return Segment(
                    [*prompt_ids, *kept],
                    continued_options(self._options, len(kept)),
                    seams={0: Seam(text[start:], token_ids[len(kept) :])},
                    kept_ids=kept,
                    repeated_tokens=back,
                )
        return None

    def _replay(self, first: Start, received: dict[int, Received]) -> Segment:
        """The whole request again, with the seed of the first time."""
        return Segment(
            self._prompt,
            self._options.replace(seed=first.seed),
            seams={i: Seam(r.text, list(r.token_ids)) for i, r in received.items()},
            repeated_tokens=sum(len(r.token_ids) for r in received.values()),
        )

    async def _options_in_force(self) -> GenerationOptions:
        """The options, with the server's defaults of those that decide how to resume."""
        connection = self._connection
        model = await connection.stub.GetModel(
            pb.GetModelRequest(model=connection.model),
            timeout=self._deadline.remaining_seconds(),
            metadata=connection.metadata,
        )
        defaults = model.default_sampling
        return self._options.replace(
            **{
                name: getattr(defaults, name)
                for name in ("temperature", "presence_penalty", "frequency_penalty")
                if getattr(self._options, name) is None and defaults.HasField(name)
            }
        )

    async def _prompt_ids(self) -> list[int]:
        if not isinstance(self._prompt, str | Conversation):
            return list(self._prompt)
        connection = self._connection
        answer = await connection.stub.Tokenize(
            tokenize_request(self._prompt, model=connection.model),
            timeout=self._deadline.remaining_seconds(),
            metadata=connection.metadata,
        )
        return list(answer.token_ids)

    async def _detokenize(self, token_ids: list[int]) -> str:
        connection = self._connection
        answer = await connection.stub.Detokenize(
            pb.DetokenizeRequest(
                model=connection.model,
                token_ids=token_ids,
                keep_special_tokens=self._options.keep_special_tokens,
            ),
            timeout=self._deadline.remaining_seconds(),
            metadata=connection.metadata,
        )
        return answer.text
