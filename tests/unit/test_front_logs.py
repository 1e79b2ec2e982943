"""Log lines: JSON with the figures, the request id, and no words of any user."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from front_fakes import ByteTokenizer, call

from service.front.events import Draining
from service.front.outcome import Outcomes
from service.front.request import LiveRequest
from service.front.trace_context import TraceContext
from service.logs import bind_request, configure_logging

TRACE = TraceContext("ab" * 16, "cd" * 8, None, is_sampled=True)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_when_not_a_terminal_for_both_kinds_of_loggers(stream: io.StringIO) -> None:
    configure_logging("info", "auto", stream)
    bind_request("r-1", "acme", {"trace_id": "4b", "span_id": "0f"})
    structlog.get_logger("ours").info("hello", tokens=3)
    structlog.get_logger("ours").debug("hidden")
    logging.getLogger("theirs").warning("careful %s", "x")
    ours, theirs = lines(stream)
    assert (ours["event"], ours["tokens"], ours["level"]) == ("hello", 3, "info")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == (
        "careful x",
        "warning",
        "theirs",
    )
    for line in (ours, theirs):
        assert (line["request_id"], line["tenant"]) == ("r-1", "acme")
        assert (line["trace_id"], line["span_id"]) == ("4b", "0f")


@pytest.mark.parametrize("repeats_per_minute", [0, 2])
def test_a_mistake_of_another_library_is_told_and_not_raised_where_it_logs(
    stream: io.StringIO, repeats_per_minute: int, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info", "json", stream, repeats_per_minute)
    logging.getLogger("grpc").warning("retry in %d s", "soon")
    assert "retry in %d s" in capsys.readouterr().err
    logging.getLogger("grpc").warning("retry in %d s", 5)
    (line,) = lines(stream)
    assert line["event"] == "retry in 5 s"


def test_repeats_are_left_out_of_the_lines(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream, repeats_per_minute=2)
    for number in range(4):
        structlog.get_logger("ours").info("again", number=number)
        logging.getLogger("theirs").warning("again")
    assert [line.get("number") for line in lines(stream)] == [0, None, 1, None]


def test_console_form_and_exceptions(stream: io.StringIO) -> None:
    configure_logging("debug", "console", stream)
    structlog.get_logger().debug("hello", tokens=3)
    assert "hello" in stream.getvalue()
    configure_logging("debug", "json", stream)
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "ValueError: boom" in str(json.loads(stream.getvalue().splitlines()[-1])["exception"])


def test_the_end_of_a_request_is_one_line_without_its_words(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    outcomes = Outcomes()
    secret = call(
        [*b"my secret prompt"], "r-9", tenant="t", stop=("secret stop",), salt="salt!", trace=TRACE
    )
    request = LiveRequest(
        secret,
        range(1, 2),
        ByteTokenizer(),
        (),
        arrival_seconds=0.0,
        context_bound=False,
    )
    outcomes.end(request)
    request.fail(Draining())
    outcomes.end(request)
    outcomes.reject(secret, Draining())
    cancelled, failed, refused = lines(stream)
    assert (cancelled["outcome"], failed["outcome"]) == ("cancelled", "Draining")
    assert refused["reason"] == "Draining"
    assert (outcomes.cancelled, outcomes.failed, outcomes.rejected) == (1, 1, 1)
    for name in ("queue_seconds", "prompt_tokens", "completion_tokens", "recomputed_tokens"):
        assert name in cancelled
    for line in (cancelled, failed, refused):
        assert (line["request_id"], line["tenant"]) == ("r-9", "t")
        assert (line["trace_id"], line["span_id"]) == (TRACE.trace_id, TRACE.span_id)
    text = stream.getvalue()
    assert "secret" not in text
    assert "salt!" not in text
    assert str([*b"my"])[1:-1] not in text
