"""A front over the scripted engine, and a tokenizer whose tokens are bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import scripted_engine
from scripted_engine import COUNT, EOS, SAY

from service.config import EngineSettings, ServeSettings
from service.engine.messages import FinishReason, SamplingParams, TokenLogprob
from service.front.call import GenerationCall
from service.front.events import Ended, Progress, Started
from service.front.front import Front
from service.front.handle import RequestHandle

ENGINE = Path(scripted_engine.__file__)
WORD_BASE = 300


class ByteTokenizer:
    """Ids 0 to 255 are bytes, 256 is EOS, from 300 on they are the given words."""

    def __init__(self, words: Sequence[str | bytes] = ()) -> None:
        self._words = [w.encode() if isinstance(w, str) else w for w in words]

    strips_leading_space = False
    has_chat_template = False
    eos_ids = (EOS,)
    bos_id = None
    vocab_size = 2000

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        if token_id == EOS:
            return b"<eos>"
        return self._words[token_id - WORD_BASE]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*text.encode()] + ([EOS] if add_special_tokens else [])

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        data = b"".join(
            self.token_bytes(i) for i in ids if not (skip_special and self.is_special(i))
        )
        return data.decode(errors="replace")


class AnyTokenizer(ByteTokenizer):
    """Every id of a fake model is some text."""

    eos_ids = ()

    def is_special(self, token_id: int) -> bool:
        return token_id < 0

    def token_bytes(self, token_id: int) -> bytes:
        return f"{token_id} ".encode()


def words(*texts: str | bytes) -> tuple[ByteTokenizer, list[int]]:
    """A tokenizer that has these words, and a SAY prompt that produces one token for each."""
    return ByteTokenizer(texts), [SAY, *range(WORD_BASE, WORD_BASE + len(texts))]


def say(text: str) -> list[int]:
    """A prompt that makes the engine produce the bytes of the text, then EOS."""
    return [SAY, *text.encode()]


def call(prompt_ids: list[int], request_id: str = "r", **options: Any) -> GenerationCall:
    """A greedy-looking call; `seed`, `logprobs` and `prompt_logprobs` go to the sampling."""
    sampling = {k: options.pop(k) for k in ("seed", "logprobs", "prompt_logprobs") if k in options}
    return GenerationCall(
        request_id=request_id,
        prompt_ids=prompt_ids,
        sampling=SamplingParams(temperature=0.0, **sampling),
        **options,
    )


def counted_text(seed: int, tokens: int) -> str:
    """What COUNT produces."""
    return "".join(chr(scripted_engine.counted_token(seed, i)) for i in range(tokens))


def count_prompt(length: int = 1) -> list[int]:
    """A prompt for COUNT."""
    return [COUNT] * length


@dataclass
class Result:
    """All that a request said, joined per candidate."""

    started: Started | None = None
    ended: Ended | None = None
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    stops: dict[int, str | None] = field(default_factory=dict)
    stop_ids: dict[int, int | None] = field(default_factory=dict)
    progresses: int = 0

    def add(self, event: Started | Progress | Ended) -> None:
        """Takes an event; checks the stream grammar."""
        assert self.ended is None, "nothing follows Ended"
        if isinstance(event, Started):
            assert self.started is None
            self.started = event
            return
        assert self.started is not None, "Started comes first"
        if isinstance(event, Ended):
            assert self.reasons.keys() == self.texts.keys()
            self.ended = event
            return
        self.progresses += 1
        assert event.deltas
        assert len({d.index for d in event.deltas}) == len(event.deltas)
        for delta in event.deltas:
            index = delta.index
            assert index not in self.reasons, "nothing follows the finish reason"
            self.texts[index] = self.texts.get(index, "") + delta.text
            self.token_ids.setdefault(index, []).extend(delta.token_ids)
            self.logprobs.setdefault(index, []).extend(delta.logprobs)
            if delta.finish_reason is not None:
                self.reasons[index] = delta.finish_reason
                self.stops[index] = delta.stop
                self.stop_ids[index] = delta.stop_token_id
            else:
                assert delta.text or delta.token_ids or delta.logprobs, "an empty delta"

    @property
    def text(self) -> str:
        """Of the only candidate."""
        assert list(self.texts) == [0]
        return self.texts[0]


async def collect(handle: RequestHandle) -> Result:
    """Reads a request to its end."""
    result = Result()
    try:
        async for event in handle:
            result.add(event)
    finally:
        handle.close()
    return result


class Record:
    """What the scripted engines received."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, kind: str) -> list[dict[str, Any]]:
        *whole, _unfinished = self.path.read_text().split("\n")
        lines = [json.loads(line) for line in whole]
        return [line for line in lines if line["type"] == kind]

    def submitted(self) -> list[dict[str, Any]]:
        return [s for line in self.lines("Submit") for s in line["sequences"]]

    def aborted_ids(self) -> list[int]:
        return [i for line in self.lines("Abort") for i in line["ids"]]


class Brake:
    """Lets COUNT come so far and no further, until it is moved or let go."""

    def __init__(self, folder: Path, tokens: int) -> None:
        self._path = folder / "brake"
        self.options = ("--brake", str(self._path))
        self.move(tokens)

    def move(self, tokens: int) -> None:
        """From now on so many tokens of each sequence are allowed."""
        part = self._path.with_suffix(".part")
        part.write_text(str(tokens))
        part.replace(self._path)

    def let_go(self) -> None:
        """All tokens are allowed."""
        self._path.unlink()


def let_time_pass(seconds: float) -> None:
    """Makes the timers of this loop due that would be after so much time."""
    loop: Any = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds


@contextlib.asynccontextmanager
async def running_front(
    tmp_path: Path,
    *engine_options: str,
    tokenizer: ByteTokenizer | None = None,
    ready: bool = True,
    command: Sequence[str] | None = None,
    on_loading: Callable[[Any], None] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Front, Record]]:
    """A started front; `settings` are those of ServeSettings."""
    settings.setdefault("restart_delay_seconds", 0.0)
    settings.setdefault("engine", EngineSettings(model="scripted"))
    record = Record(tmp_path / "engine.jsonl")
    front = Front(
        ServeSettings(**settings),
        engine_command=command
        or (sys.executable, str(ENGINE), "--record", str(record.path), *engine_options),
        tokenizer=tokenizer or ByteTokenizer(),  # type: ignore[arg-type]
        on_loading=on_loading,
    )
    await front.start()
    try:
        if ready:
            await front.wait_ready()
        yield front, record
    finally:
        await front.stop()


async def eventually(condition: Callable[[], bool], limit_seconds: float = 120.0) -> None:
    """Waits until the condition holds."""
    give_up = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < give_up, "the condition never held"
        await asyncio.sleep(0.002)
