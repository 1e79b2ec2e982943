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


# About 0.1 s of work. A client may send megabytes, which take seconds.
_LONG_CHARACTERS = 65536


class TextService:
    """The tokenizer behind threads, half of which are kept free of long texts."""

    def __init__(self, threads: int) -> None:
        long_threads = max(1, threads // 2)
        self._long_pool = ThreadPoolExecutor(long_threads, thread_name_prefix="tokenizer long")
        self._pool = self._long_pool
        if threads > long_threads:
            self._pool = ThreadPoolExecutor(threads - long_threads, thread_name_prefix="tokenizer")

    def close(self) -> None:
        """Drops what is queued; calls that run end by themselves."""
        for pool in (self._pool, self._long_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def load(self, settings: ServeSettings) -> tuple[Tokenizer, SamplingParams]:
        """The tokenizer of a model, and its defaults. Raises what reading its files raises."""
        return await self._run(lambda: _load(settings))

    async def encode(
        self, tokenizer: Tokenizer, text: str, *, add_special_tokens: bool
    ) -> list[int]:
        """As `Tokenizer.encode`."""
        return await self._run(
            lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens), len(text)
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
            ),
            sum(len(message.content) for message in messages),
        )

    async def decode(
        self, tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special: bool
    ) -> str:
        """As `Tokenizer.decode`."""
        return await self._run(lambda: tokenizer.decode(token_ids, skip_special=skip_special))

    async def _run(self, work: Callable[[], T], characters: int = 0) -> T:
        pool = self._long_pool if characters > _LONG_CHARACTERS else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, work)


def _load(settings: ServeSettings) -> tuple[Tokenizer, SamplingParams]:
    # Imported here, in the thread: the front starts while the libraries load.
    from service.front.default_sampling import load_default_sampling
    from service.models.source import resolve_model
    from service.tokenizer import ChatLimits, load_tokenizer

    source = resolve_model(settings.engine.model)
    limits = ChatLimits(settings.max_chat_messages, settings.max_chat_bytes)
    return load_tokenizer(source, limits), load_default_sampling(source)
