"""Seams and options of resumed streams: pure parts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.client import GenerationOptions
from service.client.outputs import Chunk
from service.client.resume import (
    Diverged,
    Received,
    Seam,
    can_continue,
    continued_options,
)


def split(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


@given(st.text(max_size=30), st.integers(0, 30), st.lists(st.integers(0, 30), max_size=6))
def test_a_seam_gives_the_rest_however_it_is_cut(text: str, kept: int, cuts: list[int]) -> None:
    head = text[:kept]
    seam = Seam(head, [ord(c) for c in head])
    pieces = split(text, cuts)
    new_text = "".join(seam.new_text(piece) for piece in pieces)
    new_tokens = [t for piece in pieces for t in seam.new_tokens(tuple(map(ord, piece)))]
    assert head + new_text == text
    assert new_tokens == [ord(c) for c in text[kept:]]
    assert seam.is_closed


@given(st.text(min_size=1, max_size=20), st.data())
def test_a_seam_finds_a_different_character(text: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda c: c != text[place]))
    seam = Seam(text, [])
    with pytest.raises(Diverged):
        seam.new_text(text[:place] + other + text[place + 1 :])
    with pytest.raises(Diverged):
        Seam("", [ord(c) for c in text]).new_tokens(
            tuple(map(ord, text[:place] + other + text[place + 1 :]))
        )


def test_a_seam_is_open_until_all_was_seen_again() -> None:
    seam = Seam("abc", [1, 2])
    seam.new_text("abc")
    assert not seam.is_closed
    seam.new_tokens((1,))
    assert not seam.is_closed
    seam.new_tokens((2, 3))
    assert seam.is_closed


def received(tokens: int = 3, finished: bool = False) -> dict[int, Received]:
    return {0: Received(["abc"], list(range(tokens)), finished)}


GREEDY = GenerationOptions(temperature=0)


def test_plain_greedy_streams_continue() -> None:
    assert can_continue(GREEDY, received())
    assert can_continue(GREEDY.replace(max_tokens=4, repetition_penalty=1.3), received())
    assert can_continue(GREEDY.replace(logit_bias={1: 2.0}, stop_token_ids=(7,)), received())


@pytest.mark.parametrize(
    "options",
    [
        GREEDY.replace(temperature=None),
        GREEDY.replace(temperature=0.1),
        GREEDY.replace(candidate_count=2),
        GREEDY.replace(presence_penalty=0.1),
        GREEDY.replace(frequency_penalty=-0.1),
        GREEDY.replace(stop=("x",)),
        GREEDY.replace(skip_text=True),
        GREEDY.replace(truncate_prompt_tokens=5),
        GREEDY.replace(max_tokens=3),
    ],
)
def test_what_would_not_be_exact_does_not_continue(options: GenerationOptions) -> None:
    assert not can_continue(options, received())


def test_nothing_or_all_received_does_not_continue() -> None:
    assert not can_continue(GREEDY, {})
    assert not can_continue(GREEDY, received(tokens=0))
    assert not can_continue(GREEDY, {0: Received([], [1])})
    assert not can_continue(GREEDY, received(finished=True))


def test_limits_shrink_by_what_was_received() -> None:
    options = continued_options(GREEDY.replace(max_tokens=10, min_tokens=4, seed=3), 6)
    assert (options.max_tokens, options.min_tokens, options.seed) == (4, 0, 3)
    assert continued_options(GREEDY.replace(min_tokens=9), 6).min_tokens == 3
    assert continued_options(GREEDY, 6).max_tokens is None


def test_received_chunks_add_up() -> None:
    kept = Received()
    kept.record(Chunk(0, "ab", (1, 2)))
    kept.record(Chunk(0, "", (3,)))
    assert (kept.text, kept.token_ids, kept.finished) == ("ab", [1, 2, 3], False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": -1}, r"max_tokens: -1 is not in \[0, 2\^32\)"),
        ({"seed": 2**64}, "seed: 18446744073709551616"),
        ({"priority": 2**31}, "priority: 2147483648"),
        ({"top_k": -5}, "top_k: -5"),
    ],
)
def test_numbers_that_do_not_fit_the_wire_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GenerationOptions(**fields)  # type: ignore[arg-type]


def test_one_stop_string_is_not_a_row_of_letters() -> None:
    with pytest.raises(TypeError, match="tuple of strings"):
        GenerationOptions(stop="END")  # type: ignore[arg-type]


def test_unset_options_stay_unset_on_the_wire() -> None:
    message = GenerationOptions().to_proto()
    assert not message.sampling.ListFields()
    assert not message.stopping.HasField("max_tokens")
    assert not message.stopping.HasField("time_limit")
    assert not message.output.HasField("logprobs")
    zero = GenerationOptions(temperature=0, top_k=0, time_limit_seconds=1.5).to_proto()
    assert zero.sampling.HasField("temperature")
    assert zero.sampling.HasField("top_k")
    assert zero.stopping.time_limit.ToMilliseconds() == 1500
