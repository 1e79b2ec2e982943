"""StopMatcher against a reading of the whole text: any text, any cut, any stop strings."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.tokenizer.stops import StopMatcher

# Few letters, so that stop strings overlap, repeat and nearly match.
_TEXT = st.text(alphabet="abé\n🙂", max_size=40)
_STOPS = st.lists(st.text(alphabet="abé\n🙂", min_size=1, max_size=6), max_size=5)


def _oracle(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """The first stop string to be complete, of those the longest; looked for at every end."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


def _chunks(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@given(_TEXT, _STOPS, st.lists(st.integers(0, 40), max_size=12), st.booleans())
@example("\nObservation: x", ["\nObservation"], [3, 7], False)
@example(" Alice!", ["Alice:"], [1, 6], False)
@example("?\n", ["\n"], [], False)
@example("aab", ["ab"], [1, 2], False)
def test_stream_equals_the_reading_of_the_whole_text(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    matcher = StopMatcher(stops, include_stop)
    sent, matched = "", None
    for chunk in _chunks(text, cuts):
        emitted, found = matcher.push(chunk)
        assert matched is None or (emitted, found) == ("", None)
        sent += emitted
        matched = matched or found
    sent += matcher.finish()
    assert (sent, matched) == _oracle(text, stops, include_stop)


@given(_TEXT, _STOPS)
def test_what_is_held_back_is_the_longest_suffix_that_may_become_a_stop(
    text: str, stops: list[str]
) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for end, char in enumerate(text, 1):
        emitted, matched = matcher.push(char)
        sent += emitted
        if matched is not None:
            return
        held = text[len(sent) : end]
        prefixes = {stop[:length] for stop in stops for length in range(1, len(stop))}
        suffixes = {text[start:end] for start in range(end)}
        assert held == max(prefixes & suffixes, key=len, default="")


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_largest_stops_and_a_text_that_nearly_matches_them_all(size: int) -> None:
    stops = ["a" * 255 + chr(ord("b") + index) for index in range(16)]
    text = "a" * 20_000 + "z"
    matcher = StopMatcher(stops)
    sent = "".join(
        matcher.push(text[start : start + size])[0] for start in range(0, len(text), size)
    )
    assert sent == text  # the last character can no longer become any of them
    assert matcher.finish() == ""
    assert StopMatcher(stops).push("a" * 300 + "c") == ("a" * 45, stops[1])
