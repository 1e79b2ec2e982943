"""Tokenization in threads: who may keep whom waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from front_fakes import eventually

from service.front.text import TextService
from service.tokenizer.tokenizer import ChatMessage

LONG = "x" * 100_000


class SlowTokenizer:
    """Takes until `release` for a long text."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.at_work = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002
        if len(text) > 1000:
            self.at_work += 1
            assert self.release.wait(120)
        return [len(text)]

    def encode_chat(self, messages: Sequence[ChatMessage], **_: object) -> list[int]:
        return self.encode("".join(m.content for m in messages), add_special_tokens=True)


@pytest.mark.parametrize("chat", [False, True])
async def test_long_texts_leave_a_thread_to_short_ones(chat: bool) -> None:
    tokenizer = SlowTokenizer()
    service = TextService(threads=2)

    async def encode(text: str) -> list[int]:
        used: Any = tokenizer
        if not chat:
            return await service.encode(used, text, add_special_tokens=True)
        half = len(text) // 2
        messages = [ChatMessage("user", part) for part in (text[:half], text[half:])]
        return await service.encode_chat(
            used, messages, tools=None, template_kwargs=None, continue_final_message=False
        )

    long = [asyncio.create_task(encode(LONG)) for _ in range(5)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(encode("short"), 120) == [5]
    assert tokenizer.at_work <= 1
    tokenizer.release.set()
    assert await asyncio.gather(*long) == [[len(LONG)]] * 5
    service.close()


async def test_clients_that_hang_up_do_not_free_a_thread_that_is_at_work() -> None:
    tokenizer: Any = SlowTokenizer()
    service = TextService(threads=2)
    for _ in range(5):
        left = asyncio.create_task(service.encode(tokenizer, LONG, add_special_tokens=True))
        await asyncio.sleep(0)  # it has begun
        await eventually(lambda: tokenizer.at_work == 1)
        left.cancel()
    short = service.encode(tokenizer, "short", add_special_tokens=True)
    assert await asyncio.wait_for(short, 120) == [5]
    assert tokenizer.at_work == 1
    tokenizer.release.set()
    service.close()


async def test_a_lone_thread_serves_long_texts_too() -> None:
    tokenizer: Any = SlowTokenizer()
    tokenizer.release.set()
    service = TextService(threads=1)
    assert await service.encode(tokenizer, LONG, add_special_tokens=True) == [len(LONG)]
    service.close()
