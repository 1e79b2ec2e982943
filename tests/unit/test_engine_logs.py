"""Logs of an engine: the lines are those that the front would have written."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import structlog

from service import logs as front_logs
from service.config import ServeSettings
from service.config.engine_logs import LogSettings
from service.engine import logs as engine_logs


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def write_records() -> None:
    logger = logging.getLogger("kvcache.tiers")
    logger.debug("not shown")
    logger.warning('disk tier: %s\nin \udcff two lines, with a quote "', "ä")
    for _ in range(5):
        logger.info("again")
    try:
        raise ValueError("with a cause") from KeyError("x")
    except ValueError:
        logger.exception("raised")


def both(
    write: Callable[[], None], capsys: pytest.CaptureFixture[str], log_format: str
) -> tuple[str, str]:
    """What is written by the front, and by an engine that was told to do the same."""
    front_logs.configure_logging("info", log_format, None, 3)  # type: ignore[arg-type]
    write()
    front = capsys.readouterr().err
    engine_logs.configure_logging(LogSettings("info", log_format, 3))  # type: ignore[arg-type]
    write()
    return front, capsys.readouterr().err


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_lines_of_json_are_those_of_the_front(
    capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    texts = both(write_records, capsys, log_format)
    front, engine = ([json.loads(line) for line in text.splitlines()] for text in texts)
    assert len(engine) == 5
    assert [list(line) for line in engine] == [list(line) for line in front], "in this order"
    for ours, theirs in zip(engine, front, strict=True):
        assert len(ours.pop("timestamp")) == len(theirs.pop("timestamp")), "of the same form"
        assert ours == theirs


def test_a_path_that_is_no_text_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    engine_logs.configure_logging(LogSettings(format="json"))
    logging.getLogger("kvcache.tiers").warning("disk tier: %s", "/x/\udcff")
    assert json.loads(capsys.readouterr().err)["event"] == "disk tier: /x/\udcff"


def test_lines_for_people_are_those_of_the_front_without_colours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write() -> None:
        logging.getLogger("kvcache.tiers").warning("disk tier: works again")

    front, engine = both(write, capsys, "console")
    _, _, front_rest = front.partition("Z")
    _, _, engine_rest = engine.partition("Z")
    assert engine_rest == front_rest


def test_a_traceback_for_people_follows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    engine_logs.configure_logging(LogSettings(format="console"))
    write_records()
    assert capsys.readouterr().err.endswith("\nValueError: with a cause\n")


def test_the_defaults_are_those_of_the_server() -> None:
    serve = ServeSettings()
    defaults = LogSettings(serve.log_level, serve.log_format, serve.log_repeats)
    assert LogSettings() == defaults


def test_a_start_does_not_wait_for_structlog() -> None:
    code = "import sys, service.engine.__main__; print('structlog' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert result.stdout == "False\n"
