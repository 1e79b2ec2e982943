"""Tokenization in a few threads, so that long prompts never hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from service.config import ServeSettings
from service.engine.messages import SamplingParams

if TYPE_CHECKING:
    from service.tokenizer.tokenizer import ChatMessage, Tokenizer

T = TypeVar("T")


class TextService:
    """The tokenizer behind a thread pool."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")

    def close(self) -> None:
        """Drops what is queued; calls that run end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def load(self, settings: ServeSettings) -> tuple[Tokenizer, SamplingParams]:
        """The tokenizer of a model, and its defaults. Raises what reading its files raises."""
        return await self._run(lambda: _load(settings))

    async def encode(
        self, tokenizer: Tokenizer, text: str, *, add_special_tokens: bool
    ) -> list[int]:
        """As `Tokenizer.encode`."""
        return await self._run(
            lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens)
        )

    async def encode_chat(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[object] | None,
        template_kwargs: Mapping[str, object] | None,
        continue_final_message: bool,
    ) -> list[int]:
        """As `Tokenizer.encode_chat`."""
        return await self._run(
            lambda: tokenizer.encode_chat(
                messages,
                tools=tools,
                template_kwargs=template_kwargs,
                continue_final_message=continue_final_message,
            )
        )

    async def decode(
        self, tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special: bool
    ) -> str:
        """As `Tokenizer.decode`."""
        return await self._run(lambda: tokenizer.decode(token_ids, skip_special=skip_special))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _load(settings: ServeSettings) -> tuple[Tokenizer, SamplingParams]:
    # Imported here, in the thread: the front starts while the libraries load.
    from service.front.default_sampling import load_default_sampling
    from service.models.source import resolve_model
    from service.tokenizer import ChatLimits, load_tokenizer

    source = resolve_model(settings.engine.model)
    limits = ChatLimits(settings.max_chat_messages, settings.max_chat_bytes)
    return load_tokenizer(source, limits), load_default_sampling(source)
