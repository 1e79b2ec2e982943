"""The level that the front tells: that of the engine's memory, or of its own queue."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvcache.pressure import PressureLevel
from service.engine.figures import EngineStats, Vitals
from service.front.pressure import PressurePolicy


def stats(level: PressureLevel | None = None) -> EngineStats:
    """`level` None: the engine has not looked at its memory yet."""
    values: dict[str, Any] = dict.fromkeys(required(EngineStats), 0)
    if level is not None:
        vitals: dict[str, Any] = {**dict.fromkeys(required(Vitals), 0), "level": level}
        values["vitals"] = Vitals(**vitals)
    return EngineStats(**values)


def required(struct: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(struct) if field.required]


def test_the_level_is_that_of_the_engine_while_the_queue_has_room() -> None:
    policy = PressurePolicy(max_waiting_requests=100)
    for level in PressureLevel:
        assert policy.level(stats(level), 99) is level
    assert policy.level(stats(None), 99) is PressureLevel.NORMAL


@pytest.mark.parametrize("level", [None, *PressureLevel])
def test_a_full_queue_is_critical_until_a_quarter_of_it_is_free(
    level: PressureLevel | None,
) -> None:
    policy = PressurePolicy(max_waiting_requests=100)
    assert policy.level(stats(level), 100) is PressureLevel.CRITICAL
    assert policy.level(stats(level), 75) is PressureLevel.CRITICAL
    assert policy.level(stats(level), 74) is (level or PressureLevel.NORMAL)
    assert policy.level(stats(level), 99) is (level or PressureLevel.NORMAL)
