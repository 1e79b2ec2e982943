"""Which core a manager has, and what only the native one can do wrong."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from kv_cores import needs_native

from kvcache import AdmissionRequest, CacheManager, Fits
from kvcache.core.python_core import PythonCore
from kvcache.errors import (
    ConservationError,
    InvalidArgumentError,
    NativeCoreMissingError,
    OutOfBlocksError,
)
from kvcache.events import EventLog

NAMESPACE = b"n"


@pytest.fixture
def no_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that had no compiler."""
    monkeypatch.setitem(sys.modules, "kvcache._native", None)


@needs_native
def test_the_native_core_is_the_default_where_it_was_built() -> None:
    manager = CacheManager(9, 4)
    assert manager.core_name == "native"
    assert repr(manager) == "<CacheManager of 8 blocks of 4 tokens, native core>"
    assert CacheManager(9, 4, core="python").core_name == "python"


@pytest.mark.usefixtures("no_native_core")
def test_without_the_native_core_the_python_one_works_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "kvcache"):
        assert CacheManager(9, 4).core_name == "python"
    assert "without its native core" in caplog.text


@pytest.mark.usefixtures("no_native_core")
def test_a_demanded_native_core_that_is_missing_is_an_error() -> None:
    with pytest.raises(NativeCoreMissingError, match="cannot be loaded"):
        CacheManager(9, 4, core="native")


def test_an_unknown_core_and_an_impossible_pool_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"core is 'rust'.*auto, native or python"):
        CacheManager(9, 4, core="rust")  # type: ignore[arg-type]
    for num_blocks in (1, 2**31):
        with pytest.raises(InvalidArgumentError, match=f"num_blocks is {num_blocks}"):
            CacheManager(num_blocks, 4)


@needs_native
def test_who_wants_events_need_not_do_without_the_native_core() -> None:
    assert CacheManager(9, 4, events=EventLog()).core_name == "native"


# --- the native core as such ---


@needs_native
class TestNativeCore:
    def test_colliding_digests_do_not_make_a_hit(self) -> None:
        """With one digest for everything the hash table is one chain, and every answer exact."""
        from kvcache._native import NativeCore

        native = NativeCore(40, 2, 2, 9, digest_bits=0)
        python = PythonCore(40, 2, 2, 9)
        rng = np.random.default_rng(3)
        for sequence_id in range(300):
            tokens = rng.integers(0, 3, rng.integers(1, 12), dtype=np.int32)
            most = (tokens.size - 1) // 2
            found = [core.match(NAMESPACE, tokens, most) for core in (native, python)]
            assert found[0] == found[1]
            for core, match in zip((native, python), found, strict=True):
                core.begin(sequence_id, NAMESPACE, tokens, True, match, True, 0, 0, 0)
                core.commit(sequence_id, tokens.size)
                core.audit()
            ours, theirs = native.block_table(sequence_id), python.block_table(sequence_id)
            assert bytes(ours) == bytes(theirs)
            for core in (native, python):
                core.release(sequence_id)
        assert native.counts() == python.counts()
        assert native.counts()[1] > 20, "the cache was in use"

    def test_colliding_digests_do_not_make_one_namespace_wait_for_another(self) -> None:
        from kvcache._native import NativeCore

        core = NativeCore(40, 2, 0, 0, digest_bits=0)
        tokens = np.arange(5, dtype=np.int32)
        core.begin(1, b"red", tokens, True, (0, 0, 0), True, 0, 0, 0)
        core.begin(2, b"blue", tokens + 9, True, (0, 0, 0), True, 0, 0, 0)
        assert core.pending_blocks(b"red", tokens, 2) == 2
        assert core.pending_blocks(b"blue", tokens, 2) == 0
        core.audit()

    def test_a_stale_match_serves_nothing(self) -> None:
        from kvcache._native import NativeCore

        core = NativeCore(5, 2, 0, 0)
        tokens = np.arange(5, dtype=np.int32)
        core.begin(1, NAMESPACE, tokens, True, (0, 0, 0), True, 0, 0, 0)
        core.commit(1, 5)
        core.release(1)
        match = core.match(NAMESPACE, tokens, 2)
        assert match[:2] == (2, 2)
        core.flush(None)
        core.begin(2, NAMESPACE, tokens + 1, True, (0, 0, 0), True, 0, 0, 0)
        core.commit(2, 5)
        core.release(2)
        for namespace, wanted in (
            (NAMESPACE, match),
            (b"other", core.match(NAMESPACE, tokens + 1, 2)),
        ):
            counts = core.counts()
            with pytest.raises(ConservationError):
                core.begin(3, namespace, tokens, True, wanted, True, 0, 0, 0)
            assert core.counts() == counts
            core.audit()

    @pytest.mark.parametrize("match", [(3, 0, 1), (-1, 0, 1), (1, 2, 1), (1, 0, 5), (1, 0, -3)])
    def test_a_match_that_cannot_be_is_refused(self, match: tuple[int, int, int]) -> None:
        from kvcache._native import NativeCore

        core = NativeCore(5, 2, 0, 0)
        with pytest.raises(ConservationError):
            core.begin(1, NAMESPACE, np.arange(5, dtype=np.int32), True, match, True, 0, 0, 0)
        core.audit()

    @pytest.mark.parametrize("core_type", ["native", "python"])
    def test_a_begin_beyond_what_is_available_changes_nothing(self, core_type: str) -> None:
        from kvcache._native import NativeCore

        core = (NativeCore if core_type == "native" else PythonCore)(5, 2, 0, 0)
        tokens = np.arange(4, dtype=np.int32)
        core.begin(1, NAMESPACE, tokens, True, (0, 0, 0), True, 0, 0, 0)
        core.commit(1, 4)
        core.release(1)
        match = core.match(NAMESPACE, tokens, 2)
        longer, counts = np.arange(10, dtype=np.int32), core.counts()
        with pytest.raises(OutOfBlocksError) as caught:
            core.begin(2, NAMESPACE, longer, True, match, True, 0, 0, 0)
        assert (caught.value.wanted_blocks, caught.value.free_blocks) == (3, 2)
        assert core.counts() == counts
        core.audit()

    def test_arguments_of_a_wrong_type_or_number_are_refused(self) -> None:
        from kvcache._native import NativeCore

        core = NativeCore(5, 2, 0, 0)
        with pytest.raises(TypeError):
            core.append(1)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            core.append("one", 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            core.match("text", np.arange(4, dtype=np.int32), 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            core.match(NAMESPACE, [1, 2], 1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="num_blocks"):
            NativeCore(1, 2, 0, 0)

    def test_more_blocks_are_never_looked_at_than_there_are_tokens(self) -> None:
        from kvcache._native import NativeCore

        core = NativeCore(9, 2, 0, 0)
        tokens = np.arange(8, dtype=np.int32)
        core.begin(1, NAMESPACE, tokens, True, (0, 0, 0), True, 0, 0, 0)
        core.commit(1, 8)
        assert core.match(NAMESPACE, tokens[:5], 2**40)[0] == 2
        assert core.match(NAMESPACE, tokens[:1], 9)[0] == 0
        assert not core.begins_elsewhere(b"other", tokens[:1])

    def test_nothing_is_kept_of_arguments_and_the_core_goes_with_its_manager(self) -> None:
        manager = CacheManager(9, 4)
        reference = weakref.ref(manager)
        namespace = b"a namespace of its own"
        tokens = np.arange(9, dtype=np.int32)
        before = [sys.getrefcount(item) for item in (namespace, tokens)]
        serve(manager, 2**40, tokens, namespace)
        assert [sys.getrefcount(item) for item in (namespace, tokens)] == before
        del manager
        gc.collect()
        assert reference() is None

    def test_memory_stays_flat_over_forks_pins_events_and_other_sizes(self) -> None:
        from kvcache._native import NativeCore

        core = NativeCore(513, 4, 2, 100, True)
        prompts = np.random.default_rng(5).integers(0, 50, (97, 24), dtype=np.int32)

        def churn(rounds: int) -> None:
            for number in range(rounds):
                tokens = prompts[number % 97]
                match = core.match(NAMESPACE, tokens, 5)
                core.begin(1, NAMESPACE, tokens, True, match, True, 0, 0, number % 8)
                core.commit(1, 24)
                core.append(1, number % 3)
                core.fork(1, 2)
                whole = core.match(NAMESPACE, tokens, 6)
                core.begin(3, NAMESPACE, tokens, True, whole, False, 1 + number % 4, 0, 0)
                with pytest.raises(InvalidArgumentError):
                    core.resize(1)
                core.resize(100 + number % 7)
                for holder_id in (1, 2, 3):
                    assert core.release(holder_id)
                core.drain_events()
                core.drain_samples()
                core.runs()

        churn(2_000)
        before = resident_bytes()
        churn(8_000)
        assert resident_bytes() - before < 4 * 2**20
        core.audit()

    @pytest.mark.slow
    def test_memory_stays_flat_over_a_million_operations(self) -> None:
        manager = CacheManager(513, 4)
        rng = np.random.default_rng(5)
        prompts = rng.integers(0, 50, (997, 24), dtype=np.int32)

        def churn(rounds: int) -> None:
            for number in range(rounds):
                serve(manager, number, prompts[number % 997], b"%d" % (number % 31))
                if number % 1000 == 0:
                    manager.flush(None)

        churn(10_000)
        before = resident_bytes()
        churn(90_000)  # of 12 operations each
        assert resident_bytes() - before < 4 * 2**20
        manager.audit()


def serve(
    manager: CacheManager,
    sequence_id: int,
    tokens: np.ndarray[tuple[int], np.dtype[np.int32]],
    namespace: bytes,
) -> None:
    """A life with four generated tokens, and a few refused calls."""
    request = AdmissionRequest(sequence_id, tokens, namespace)
    answer = manager.admit(request)
    assert isinstance(answer, Fits)
    manager.begin(answer)
    manager.commit(sequence_id, tokens.size)
    for token in range(4):
        assert manager.append(sequence_id, token) == 0
    with pytest.raises(InvalidArgumentError):
        manager.commit(sequence_id, 2**62)
    manager.commit(sequence_id, tokens.size + 4)
    manager.block_table(sequence_id)
    assert manager.release(sequence_id)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
