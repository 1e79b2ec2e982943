"""Requests over the scripted engine: text, stops, candidates, merging, figures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from front_fakes import (
    call,
    collect,
    count_prompt,
    counted_text,
    eventually,
    running_front,
    say,
    words,
)
from scripted_engine import EOS, HOLD, MAX_CONTEXT_TOKENS, REFUSE, WAIT, logprob_of

from kvcache import FlushResult
from service.engine.messages import FinishReason
from service.front.call import candidate_seed
from service.front.events import DuplicateRequestId, ExceedsCapacity, QueueFull


async def test_a_request_says_its_text_and_its_figures(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call(say("héllo 🙂"), seed=5, priority=3))
        result = await collect(handle)
        assert handle.request_id == "r"
        assert result.text == "héllo 🙂"
        assert result.reasons == {0: FinishReason.EOS}
        assert result.stop_ids == {0: EOS}
        assert result.started is not None
        assert result.started.seed == 5
        assert result.started.effective_priority == 3
        assert result.started.cached_prompt_tokens == 1
        assert result.ended is not None
        usage, timings = result.ended.usage, result.ended.timings
        assert usage.prompt_tokens == len(say("héllo 🙂"))
        assert usage.completion_tokens == len("héllo 🙂".encode()) + 1
        assert usage.cached_prompt_tokens == 1
        assert usage.recomputed_tokens == 1
        assert timings.preemption_count == 1
        assert timings.preempted_seconds == 0.25
        assert timings.queue_seconds > 0
        assert timings.prefill_seconds > 0
        assert timings.decode_seconds > 0
        assert timings.time_to_first_token_seconds > timings.queue_seconds
        assert front.stats().live_requests == 0
        assert front.stats().completed_requests == 1


async def test_after_the_end_there_is_nothing(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call(say("a")))
        await collect(handle)
        with pytest.raises(StopAsyncIteration):
            await handle.next()
        handle.close()
        handle.close()
        assert front.stats().cancelled_requests == 0


@pytest.mark.parametrize("include_stop", [False, True])
async def test_stop_string_over_tokens_and_inside_a_token(
    tmp_path: Path, include_stop: bool
) -> None:
    tokenizer, prompt = words("Thought", "\nOb", "serv", "ation: x", " never", " sent")
    async with running_front(tmp_path, tokenizer=tokenizer) as (front, record):
        result = await collect(
            await front.generate(
                call(
                    prompt,
                    stop=("\nObservation", "zzz"),
                    include_stop=include_stop,
                    want_token_ids=True,
                )
            )
        )
        assert result.text == ("Thought\nObservation" if include_stop else "Thought")
        assert result.reasons == {0: FinishReason.STOP}
        assert result.stops == {0: "\nObservation"}
        assert result.stop_ids == {0: None}
        assert result.token_ids[0] == prompt[1:5]
        assert result.ended is not None
        assert result.ended.usage.completion_tokens == 4
        await eventually(lambda: front.stats().engine.blocks_held == 0)  # type: ignore[union-attr]
        assert record.aborted_ids() in ([1], [])  # [] when EOS came first


async def test_stop_string_ends_the_engine_s_work(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        text = counted_text(9, 4000)
        stop = text[6:9]
        position = text.index(stop)
        result = await collect(
            await front.generate(call(count_prompt(), seed=9, stop=(stop,), max_tokens=4000))
        )
        assert result.text == text[:position]
        assert record.aborted_ids() == [1]
        assert front.stats().engine.decode_tokens < 4000  # type: ignore[union-attr]


async def test_stop_strings_are_not_looked_for_in_the_first_min_tokens(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        result = await collect(await front.generate(call(say("xabab"), stop=("ab",), min_tokens=2)))
        assert result.text == "xab"  # the first "ab" began too early
        assert result.stops == {0: "ab"}


async def test_text_held_back_for_a_stop_comes_at_the_end(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        result = await collect(await front.generate(call(say("Hi Alic"), stop=("Alice",))))
        assert result.text == "Hi Alic"
        assert result.reasons == {0: FinishReason.EOS}


@pytest.mark.parametrize(("continues_text", "text"), [(True, " a b"), (False, "a b")])
async def test_a_completion_keeps_the_space_in_front(
    tmp_path: Path, continues_text: bool, text: str
) -> None:
    """SentencePiece: a space begins every word, and is no part of a text that begins with it."""
    tokenizer, prompt = words(" a", " b")
    tokenizer.strips_leading_space = True
    async with running_front(tmp_path, tokenizer=tokenizer) as (front, _):
        result = await collect(await front.generate(call(prompt, continues_text=continues_text)))
        assert result.text == text


async def test_an_unfinished_character_is_flushed_once(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        result = await collect(await front.generate(call(say("a🙂"), max_tokens=3)))
        assert result.text == "a\ufffd"
        assert result.reasons == {0: FinishReason.MAX_TOKENS}


async def test_stop_token_is_told_and_its_text_left_out(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        for include_stop in (False, True):
            result = await collect(
                await front.generate(
                    call(
                        say("one\ntwo"),
                        stop_ids=(10,),
                        include_stop=include_stop,
                        want_token_ids=True,
                    )
                )
            )
            assert result.text == ("one\n" if include_stop else "one")
            assert result.token_ids[0][-1] == 10
            assert result.reasons == {0: FinishReason.STOP}
            assert result.stop_ids == {0: 10}


async def test_ignore_eos_and_special_tokens(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        prompt = [*say("a"), EOS, *b"b"]
        plain = await collect(await front.generate(call(prompt, ignore_eos=True, max_tokens=3)))
        assert plain.text == "ab"
        kept = await collect(
            await front.generate(
                call(prompt, ignore_eos=True, max_tokens=3, keep_special_tokens=True)
            )
        )
        assert kept.text == "a<eos>b"


async def test_context_bound_ends_with_context_length(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--step-seconds", "0") as (front, record):
        length = MAX_CONTEXT_TOKENS - 3
        for max_tokens, tokens, reason in [
            (None, 3, FinishReason.CONTEXT_LENGTH),
            (4, 3, FinishReason.CONTEXT_LENGTH),
            (3, 3, FinishReason.MAX_TOKENS),
            (2, 2, FinishReason.MAX_TOKENS),
        ]:
            result = await collect(
                await front.generate(call(count_prompt(length), max_tokens=max_tokens))
            )
            assert result.reasons == {0: reason}
            assert len(result.text) == tokens
        for length in (0, MAX_CONTEXT_TOKENS):
            with pytest.raises(ValueError, match=f"must have 1 to {MAX_CONTEXT_TOKENS - 1}"):
                await front.generate(call(count_prompt(length)))
        assert [s["max_tokens"] for s in record.submitted()] == [3, 3, 3, 2]


async def test_candidates_have_their_own_seeds_and_end_on_their_own(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        texts = [counted_text(candidate_seed(7, i), 50) for i in range(4)]
        stop = texts[2][10:13]
        assert sum(stop in text for text in texts) == 1
        result = await collect(
            await front.generate(
                call(count_prompt(), seed=7, candidate_count=4, max_tokens=50, stop=(stop,))
            )
        )
        assert result.texts[2] == texts[2][: texts[2].index(stop)]
        for index in (0, 1, 3):
            assert result.texts[index] == texts[index]
            assert result.reasons[index] is FinishReason.MAX_TOKENS
        assert result.reasons[2] is FinishReason.STOP
        assert len(record.lines("Submit")) == 1
        assert result.ended is not None
        tokens = result.ended.usage.completion_tokens
        assert tokens == 150 + texts[2].index(stop) + len(stop)


async def test_logprobs_stay_with_their_tokens(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(
            call(say("Hi Alic!"), stop=("Alice",), logprobs=2, want_token_ids=True)
        )
        result = await collect(handle)
        ids = [*b"Hi Alic!", EOS]
        assert result.token_ids[0] == ids
        assert result.logprobs[0] == [logprob_of(i, 2) for i in ids]


async def test_prompt_logprobs_are_in_started(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        result = await collect(
            await front.generate(call(say("abc"), prompt_logprobs=1, candidate_count=2))
        )
        assert result.started is not None
        assert result.started.prompt_logprobs == [logprob_of(i, 1) for i in b"abc"]
        assert [s["prompt_logprobs"] for s in record.submitted()] == [1, None]


async def test_skip_text(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        result = await collect(
            await front.generate(
                call(say("stop here, not"), skip_text=True, want_token_ids=True, stop=("here",))
            )
        )
        assert result.text == ""
        assert bytes(result.token_ids[0]) == b"stop here"


@pytest.mark.parametrize("interval", [1, 3, 8, 1024])
async def test_stream_interval_bounds_the_messages(tmp_path: Path, interval: int) -> None:
    async with running_front(tmp_path) as (front, _):
        result = await collect(
            await front.generate(
                call(count_prompt(), seed=1, max_tokens=40, stream_interval_tokens=interval)
            )
        )
        assert result.text == counted_text(1, 40)
        assert result.progresses <= 40 // interval + 1


async def test_what_a_busy_reader_missed_comes_merged(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(
            call(count_prompt(), seed=3, max_tokens=300, candidate_count=2, logprobs=0)
        )
        events = [await handle.next()]
        await eventually(lambda: front.stats().engine.decode_tokens >= 600)  # type: ignore[union-attr]
        await eventually(lambda: front.stats().engine.blocks_held == 0)  # type: ignore[union-attr]
        assert front.stats().slow_streams == 1
        events += [await handle.next(), await handle.next()]
        with pytest.raises(StopAsyncIteration):
            await handle.next()
        progress, ended = events[1:]
        merged = [delta.text for delta in progress.deltas]  # type: ignore[union-attr]
        assert merged == [counted_text(candidate_seed(3, i), 300) for i in range(2)]
        assert [len(d.logprobs) for d in progress.deltas] == [300, 300]  # type: ignore[union-attr]
        assert ended.timings.blocked_on_client_seconds > 0  # type: ignore[union-attr]
        assert front.stats().slow_streams == 0


async def test_never_fits_is_an_error_with_the_figures(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call([REFUSE, 1, 2], candidate_count=2))
        with pytest.raises(ExceedsCapacity) as caught:
            await collect(handle)
        assert caught.value.prompt_tokens == 3
        assert caught.value.needed_blocks == 99
        assert front.stats().live_requests == 0
        assert front.stats().failed_requests == 1


async def test_queue_is_bounded_and_refuses_with_a_hint(tmp_path: Path) -> None:
    async with running_front(tmp_path, max_waiting_requests=2) as (front, _):
        handles = [await front.generate(call([WAIT], f"w{i}")) for i in range(2)]
        with pytest.raises(QueueFull) as caught:
            await front.generate(call([WAIT], "w2"))
        assert (caught.value.waiting, caught.value.limit) == (2, 2)
        assert caught.value.retry_after_seconds > 0
        assert front.stats().rejected_requests == 1
        assert front.stats().waiting_requests == 2
        handles[0].close()
        result = await collect(await front.generate(call(say("x"), "w3")))
        assert result.text == "x"


async def test_live_requests_are_bounded(tmp_path: Path) -> None:
    async with running_front(tmp_path, max_live_requests=1) as (front, _):
        handle = await front.generate(call([HOLD]))
        await handle.next()
        with pytest.raises(QueueFull):
            await front.generate(call([HOLD], "other"))
        handle.close()
        await front.generate(call([HOLD], "other"))


async def test_ids_are_unique_among_the_live_requests_of_a_tenant(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        handle = await front.generate(call([HOLD], "same", tenant="a"))
        with pytest.raises(DuplicateRequestId, match="same") as caught:
            await front.generate(call([HOLD], "same", tenant="a"))
        assert caught.value.request_id == "same"
        await front.generate(call([HOLD], "same", tenant="b"))
        handle.close()
        await front.generate(call([HOLD], "same", tenant="a"))


async def test_flush_and_lookup_reach_the_engine_with_their_namespace(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        assert await front.flush() == FlushResult(dropped_blocks=7, kept_blocks=3)
        dropped = (await front.flush(tenant="a", salt="b")).dropped_blocks
        assert await front.lookup([1, 2, 3], tenant="a") == 3
        everything, one = [line["namespace"] for line in record.lines("Flush")]
        assert everything is None
        assert len(bytes.fromhex(one)) == dropped
        assert b"scripted" in bytes.fromhex(one)


async def test_text_goes_through_the_pool(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        ids = await asyncio.gather(*(front.encode("hé") for _ in range(5)))
        assert ids == [[*"hé".encode(), EOS]] * 5
        assert await front.decode(ids[0]) == "hé"
        assert await front.decode(ids[0], skip_special=False) == "hé<eos>"
