"""The termination log: written if it is there, never too long, never in the way."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from service.flight.termination import LIMIT_BYTES, shortened, write_termination_log


def test_the_cause_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a longer text of the container before")
    write_termination_log(path, "the engine died")
    assert path.read_text() == "the engine died"


def test_no_file_is_made(tmp_path: Path) -> None:
    write_termination_log(tmp_path / "log", "the engine died")
    write_termination_log(tmp_path / "no folder" / "log", "the engine died")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    write_termination_log(tmp_path, "the engine died")  # a folder: logged, not raised
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    write_termination_log(pipe, "nobody reads")  # and nobody waits
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with capture_logs() as logs:
            write_termination_log(pipe, "somebody reads")
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert logs == []  # it may well be meant so, as /dev/null is


@given(st.text(min_size=1), st.integers(0, 6000))
def test_it_fits_and_is_cut_between_characters(word: str, repetitions: int) -> None:
    text = word * repetitions
    whole = text.encode("utf-8", "replace")
    data = shortened(text)
    assert len(data) <= LIMIT_BYTES
    said = data.decode()
    if len(whole) <= LIMIT_BYTES:
        assert data == whole
    else:
        assert said.endswith(" …")
        assert whole.startswith(said.removesuffix(" …").encode())
        assert len(data) > LIMIT_BYTES - 4


def test_text_that_cannot_be_written_is_marked() -> None:
    assert shortened("a\ud800b") == b"a?b"
