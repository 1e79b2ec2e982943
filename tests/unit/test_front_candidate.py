"""A candidate's deltas, joined, are the same however they were merged."""

from __future__ import annotations

from front_fakes import WORD_BASE, ByteTokenizer, call
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import EOS, logprob_of

from service.engine.messages import FinishReason, Output
from service.front.candidate import Candidate
from service.front.events import Delta
from service.tokenizer.stops import StopMatcher

WORDS = ["a", "b", "ab", "é", "🙂", b"\xf0\x9f", b"\x99\x82", b"\xff", "aba", "\n"]
TOKENIZER = ByteTokenizer(WORDS)

tokens = st.lists(st.integers(WORD_BASE, WORD_BASE + len(WORDS) - 1), max_size=30)
stops = st.lists(st.text("ab\né🙂\ufffd", min_size=1, max_size=4), max_size=3)
cuts = st.lists(st.booleans(), min_size=40, max_size=40)


def make(stop: list[str], **options: object) -> Candidate:
    request = call([1], stop=tuple(stop), want_token_ids=True, logprobs=1, **options)
    matcher = StopMatcher(stop, bool(options.get("include_stop"))) if stop else None
    return Candidate(0, 1, request, TOKENIZER, (EOS,), matcher)


def feed(
    candidate: Candidate, ids: list[int], together: list[bool], drains: list[bool]
) -> list[Delta]:
    """Pushes the ids in outputs of one or more, drains now and then, ends by the engine."""
    deltas: list[Delta] = []
    batch: list[int] = []
    for position, token_id in enumerate(ids):
        batch.append(token_id)
        if together[position] and position < len(ids) - 1:
            continue
        over = candidate.push(Output(1, batch, [logprob_of(i, 1) for i in batch]))
        batch = []
        if drains[position] and (delta := candidate.drain()):
            deltas.append(delta)
        if over:
            break
    candidate.finish(FinishReason.MAX_TOKENS)
    if delta := candidate.drain():
        deltas.append(delta)
    assert candidate.drain() is None
    assert candidate.pending_bytes == 0
    assert candidate.unsent_tokens == 0
    return deltas


def joined(deltas: list[Delta]) -> tuple[object, ...]:
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    last = deltas[-1]
    return (
        "".join(d.text for d in deltas),
        [i for d in deltas for i in d.token_ids],
        [lp for d in deltas for lp in d.logprobs],
        last.finish_reason,
        last.stop,
        last.stop_token_id,
    )


@given(tokens, stops, cuts, cuts, st.integers(0, 5), st.booleans(), st.integers(1, 5))
def test_merged_equals_unmerged(
    ids: list[int],
    stop: list[str],
    together: list[bool],
    drains: list[bool],
    min_tokens: int,
    include_stop: bool,
    interval: int,
) -> None:
    def options() -> dict[str, object]:
        return {"min_tokens": min_tokens, "include_stop": include_stop}

    one_by_one = feed(make(stop, **options()), ids, [False] * 40, [True] * 40)
    merged = feed(make(stop, **options(), stream_interval_tokens=interval), ids, together, drains)
    assert joined(merged) == joined(one_by_one)
    _, token_ids, logprobs, *_ = joined(merged)
    assert logprobs == [logprob_of(i, 1) for i in token_ids]  # type: ignore[attr-defined]


@given(tokens, stops, st.booleans())
def test_text_is_that_of_the_whole_cut_at_the_first_stop(
    ids: list[int], stop: list[str], include_stop: bool
) -> None:
    text, token_ids, _, reason, matched, _ = joined(
        feed(make(stop, include_stop=include_stop), ids, [False] * 40, [True] * 40)
    )
    whole = TOKENIZER.decode(ids)
    ends = {(whole.find(s) + len(s), -len(s), s) for s in stop if s in whole}
    if not ends:
        assert (text, reason, matched, token_ids) == (whole, FinishReason.MAX_TOKENS, None, ids)
        return
    end, _, first = min(ends)
    assert (reason, matched) == (FinishReason.STOP, first)
    assert text == whole[: end if include_stop else end - len(first)]
    assert token_ids == ids[: len(token_ids)]  # type: ignore[arg-type]


def test_unmatched_text_is_delivered_without_delay() -> None:
    candidate = make(["xyz" * 10])
    for _ in range(3):
        candidate.push(Output(1, [WORD_BASE]))
        delta = candidate.drain()
        assert delta is not None
        assert delta.text == "a"


def test_pending_bytes_count_text_ids_and_logprobs() -> None:
    candidate = make([])
    candidate.push(Output(1, [WORD_BASE + 4], [logprob_of(WORD_BASE + 4, 1)]))
    assert candidate.pending_bytes == 4 + 4 + 2 * 12


def test_a_second_finish_changes_nothing() -> None:
    candidate = make([])
    candidate.finish(FinishReason.TIME_LIMIT)
    candidate.finish(FinishReason.CANCELLED)
    candidate.push(Output(1, [WORD_BASE]))
    delta = candidate.drain()
    assert delta is not None
    assert (delta.finish_reason, delta.text) == (FinishReason.TIME_LIMIT, "")
