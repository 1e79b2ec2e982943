"""Stop strings: the cases that people reported, one by one."""

from __future__ import annotations

import pytest

from service.tokenizer import StopMatcher


def test_text_before_the_stop_in_the_same_chunk_is_sent() -> None:
    assert StopMatcher(["\n"]).push("?\nmore") == ("?", "\n")


def test_a_partial_match_that_is_given_up_is_sent_exactly_once() -> None:
    matcher = StopMatcher(["Alice:"])
    pieces = [matcher.push(piece)[0] for piece in (" Al", "ice", "!")]
    assert pieces == [" ", "", "Alice!"]
    assert matcher.finish() == ""


def test_a_stop_over_several_chunks_never_leaks() -> None:
    matcher = StopMatcher(["\nObservation"])
    pushed = [matcher.push(piece) for piece in ("x\nOb", "serv", "ation: y")]
    assert pushed == [("x", None), ("", None), ("", "\nObservation")]


def test_a_long_stop_without_a_common_prefix_delays_nothing() -> None:
    matcher = StopMatcher(["#" * 40])
    assert matcher.push("Hello") == ("Hello", None)


def test_include_stop_sends_it_and_nothing_after_it() -> None:
    matcher = StopMatcher(["END"], include_stop=True)
    assert matcher.push("the E") == ("the ", None)
    assert matcher.push("ND of it") == ("END", "END")
    assert matcher.push("more") == ("", None)
    assert matcher.finish() == ""


def test_of_two_stops_the_one_complete_first_wins_and_the_longer_on_a_tie() -> None:
    assert StopMatcher(["abcd", "bc"]).push("xabcd") == ("xa", "bc")
    assert StopMatcher(["c", "abc", "bc"]).push("xabc") == ("x", "abc")


def test_an_empty_stop_is_refused_by_its_index() -> None:
    with pytest.raises(ValueError, match=r"stop\[1\] is empty"):
        StopMatcher(["a", ""])


def test_without_stops_text_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", None)
    assert matcher.finish() == ""
