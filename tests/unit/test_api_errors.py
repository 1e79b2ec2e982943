"""The error table is complete, and what it says fits into trailers."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2

from service.api import errors
from service.api.errors import ApiError, FieldViolation, InvalidRequest, describe, to_status
from service.front import events
from service.front.events import EngineLost, QueueFull, RequestError, SlowReader

EXPECTED = [
    kind
    for module in (events, errors)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, RequestError | ApiError)
    and kind not in (RequestError, ApiError)
]


@pytest.mark.parametrize("kind", EXPECTED)
def test_every_expected_exception_has_a_row(kind: type[Exception]) -> None:
    assert kind in errors.FAULTS


@pytest.mark.parametrize("error", [ValueError("x"), RequestError(), KeyError("secret")])
def test_anything_else_is_a_bug(error: Exception) -> None:
    assert describe(error) is None


def test_a_subclass_is_described_as_its_base() -> None:
    class SlowerReader(SlowReader):
        pass

    fault = describe(SlowerReader(unsent_tokens=3, limit_seconds=1.5))
    assert fault is not None
    assert fault.reason == "SLOW_READER"


@pytest.mark.parametrize(
    ("tokens_sent", "code"),
    [(0, grpc.StatusCode.UNAVAILABLE), (1, grpc.StatusCode.ABORTED)],
)
def test_a_lost_engine_is_retried_only_before_the_first_token(
    tokens_sent: int, code: grpc.StatusCode
) -> None:
    fault = describe(EngineLost(tokens_sent))
    assert fault is not None
    assert (fault.code, fault.reason) == (code, "ENGINE_LOST")
    assert (fault.retry_after_seconds is not None) == (code is grpc.StatusCode.UNAVAILABLE)


def test_a_delay_is_told_to_programs_and_to_grpc() -> None:
    fault = describe(QueueFull(waiting=9, limit=9, retry_after_seconds=0.7501))
    assert fault is not None
    retry = error_details_pb2.RetryInfo()
    assert to_status(fault, "r").details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 751  # rounded up
    assert ("grpc-retry-pushback-ms", "751") in errors.trailers(fault, "r")


def test_many_long_violations_fit_into_trailers() -> None:
    violations = [
        FieldViolation(f"options.stopping.stop[{i}]", "\x00é🙂" * 1000, "must be shorter")
        for i in range(1000)
    ]
    fault = describe(InvalidRequest(violations))
    assert fault is not None
    assert len(to_status(fault, "r").SerializeToString()) < 4096
    assert fault.message.isascii()
    assert fault.message.isprintable()


def test_values_are_shown_escaped_and_bounded() -> None:
    assert str(FieldViolation("f", "a\r\nb", "l")) == r"f = 'a\r\nb': l"
    assert len(str(FieldViolation("f", "x" * 10**6, "l"))) < 100
    assert len(str(FieldViolation("f", "", "y" * 10**6))) < 300
