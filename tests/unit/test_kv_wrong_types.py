"""CacheManager: arguments of other types are refused before anything has changed, by both cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kv_cores import NewManager
from kv_manager_driver import RED, request, run, serve, tokens

from kvcache import AdmissionRequest, CacheManager, TenantShare
from kvcache.errors import InvalidArgumentError

PROMPT = tokens(range(8))


def wrong_request(**fields: Any) -> AdmissionRequest:
    right: dict[str, Any] = {"sequence_id": 7, "token_ids": PROMPT, "namespace": RED}
    return AdmissionRequest(**right | fields)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.lookup("red", PROMPT),
        lambda m: m.pin("red", PROMPT, 10),
        lambda m: m.begin_load(bytearray(b"red"), PROMPT, 10),
        lambda m: m.begin_store("red", PROMPT, 10),
        lambda m: m.flush("red"),
        lambda m: m.lookup(RED, [1, 2, 3]),
        lambda m: m.pin(RED, None, 10),
        lambda _: wrong_request(namespace="red"),
        lambda _: wrong_request(token_ids=[1, 2, 3]),
    ],
)
def test_namespaces_that_are_not_bytes_and_tokens_that_are_no_array_are_refused(
    new_manager: NewManager, call: Callable[[Any], object]
) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    before = manager.stats()
    with pytest.raises(InvalidArgumentError, match=r"must be (bytes|a flat int32 array)"):
        call(manager)
    assert manager.stats() == before


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.append(1, 1.5),
        lambda m: m.commit(1, 8.0),
        lambda m: m.fork(1, 2.5),
        lambda m: m.resize(7.0),
        lambda m: m.preempt(1, keep_blocks=1.5),
        lambda _: TenantShare(1.5),  # type: ignore[arg-type]
        lambda _: TenantShare(0, 1.5),  # type: ignore[arg-type]
        lambda _: wrong_request(sequence_id=1.5),
        lambda _: wrong_request(headroom_blocks=0.5),
        lambda _: wrong_request(retention=1.5),
    ],
)
def test_numbers_that_are_no_integers_are_refused(
    new_manager: NewManager, call: Callable[[Any], object]
) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(8)))
    before = manager.stats()
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        call(manager)
    assert manager.stats() == before
    assert manager.num_tokens(1) == 8
    manager.audit()


def test_integers_of_numpy_are_as_good(new_manager: NewManager) -> None:
    manager: CacheManager = new_manager(9, 4)
    number = np.int64(5)
    run(manager, wrong_request(sequence_id=number))
    assert manager.append(number, np.int32(3)) == 0  # type: ignore[arg-type]
    manager.commit(5, np.int64(9))  # type: ignore[arg-type]
    assert manager.release(number)  # type: ignore[arg-type]
    assert manager.lookup(RED, tokens(range(9))) == 8
    manager.audit()
