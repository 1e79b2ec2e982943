"""The parts of the native core one by one, and the whole of it under sanitizers.

Compiles C++, hence slow; without a compiler these tests are skipped.
"""

from __future__ import annotations

import heapq
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from types import ModuleType

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kvcache.core.pool import BlockPool
from kvcache.core.regret import EvictionMemory
from kvcache.core.states import BlockState, HolderKind
from kvcache.errors import IllegalTransitionError, OutOfBlocksError

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("c++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler"),
]


def compile_extension(source: Path, target: Path, *options: str) -> None:
    """Builds an extension module of one source file."""
    command = [str(COMPILER), "-std=c++17", "-g", "-O1", "-fPIC", "-shared", "-w", *options]
    command += ["-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([*command, str(source), "-o", str(target)], check=True)


def compiler_file(name: str) -> Path:
    """Where the compiler has a library; a relative path if it has not."""
    command = [str(COMPILER), f"-print-file-name={name}"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    target = tmp_path_factory.mktemp("parts") / "kv_native_parts.so"
    source = Path(__file__).with_name("kv_native_parts.cpp")
    compile_extension(source, target, "-fsanitize=undefined", "-fno-sanitize-recover=undefined")
    spec = importlib.util.spec_from_file_location("kv_native_parts", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@settings(max_examples=300, deadline=None)
@given(data=st.data(), capacity=st.sampled_from([1, 2, 63, 64, 65, 4096, 4097, 300_000]))
def test_the_free_set_gives_its_lowest_member(
    parts: ModuleType, data: st.DataObject, capacity: int
) -> None:
    heap: list[int] = []
    steps, popped = [], []
    for wanted in data.draw(st.lists(st.integers(-capacity, capacity - 1), max_size=60)):
        if wanted >= 0 and wanted not in heap:
            heapq.heappush(heap, wanted)
            steps.append(wanted)
        elif heap:
            popped.append(heapq.heappop(heap))
            steps.append(-1)
    members = set(heap)
    highest = next((number for number in reversed(range(capacity)) if number not in members), 0)
    assert parts.free_set(capacity, steps) == [*popped, len(heap), highest]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), distinct=st.sampled_from([2, 12, 80]))
def test_digests_are_counted_as_by_a_counter(
    parts: ModuleType, data: st.DataObject, distinct: int
) -> None:
    """Digests close to each other and at both ends: probes run into neighbours and wrap around."""
    near = st.integers(1, distinct).map(lambda number: number << 24)
    high = st.integers(0, distinct).map(lambda number: 2**32 - 1 - number)
    counter: Counter[int] = Counter()
    steps, seen = [], []
    for digest, add in data.draw(st.lists(st.tuples(near | high, st.booleans()), max_size=200)):
        if add or counter[digest] == 0:
            counter[digest] += 1
            steps.append(digest)
        else:
            counter[digest] -= 1
            steps.append(-digest)
        seen.append(counter[digest])
    assert parts.digest_counts(steps) == [*seen, len(+counter)]


@settings(max_examples=300, deadline=None)
@given(digests=st.lists(st.integers(1, 40), max_size=80), capacity=st.integers(1, 12))
def test_evictions_are_remembered_as_by_the_oracle(
    parts: ModuleType, digests: list[int], capacity: int
) -> None:
    oracle = EvictionMemory(capacity)
    for digest in digests:
        oracle.remember(digest)
    wanted = list(range(1, 41))
    expected = [digest in oracle for digest in wanted]
    assert [bool(found) for found in parts.eviction_memory(capacity, digests, wanted)] == expected


def facts(error: IllegalTransitionError) -> tuple[object, ...]:
    return error.block, error.state, error.operation, error.actor, error.history


Step = tuple[str, int, int, int]  # operation, block, actor, kind
OPERATIONS = st.sampled_from(["allocate", "hold", "hold", "release", "publish", "unpublish"])
STATES = [state for state in BlockState if state not in (BlockState.FREE, BlockState.NULL)]


def apply(pool: BlockPool, step: Step) -> None:
    operation, block, actor, kind = step
    match operation:
        case "allocate":
            pool.allocate(actor, HolderKind(kind))
        case "hold":
            pool.hold(block, actor, HolderKind(kind))
        case "release":
            pool.release(block, actor)
        case "publish":
            pool.publish(block, actor)
        case "unpublish":
            pool.unpublish(block, "eviction")


@settings(max_examples=500, deadline=None)
@given(
    steps=st.lists(
        st.tuples(OPERATIONS, st.integers(1, 4), st.integers(0, 1), st.integers(0, 4)), max_size=30
    )
)
def test_the_pool_allows_and_refuses_what_the_oracle_does(
    parts: ModuleType, steps: list[tuple[str, int, int, int]]
) -> None:
    """The native pool trusts its core to release what is its own, and to hold it once."""
    oracle, done = BlockPool(5), []
    for operation, block, number, kind in steps:
        step = (operation, block, 10 * kind + number, kind)
        done.append(step)
        try:
            apply(oracle, step)
        except OutOfBlocksError:
            with pytest.raises(OutOfBlocksError):
                parts.pool(5, done)
            done.pop()
        except IllegalTransitionError as error:
            if "held by" not in error.reason:
                expected = facts(error)
                with pytest.raises(IllegalTransitionError) as caught:
                    parts.pool(5, done)
                assert facts(caught.value) == expected
            done.pop()
    counts, shared, order = parts.pool(5, done)
    assert shared == oracle.shared_blocks
    assert counts["FREE"] == oracle.free_blocks
    assert {state.name: counts[state.name] for state in STATES} == {
        state.name: oracle.count(state) for state in STATES
    }
    cached = [block for block in range(1, 5) if oracle.state(block) is BlockState.CACHED]
    assert sorted(order) == cached


def test_a_double_free_names_the_block_its_state_and_its_history(parts: ModuleType) -> None:
    life = [("allocate", 0, 3, 0), ("publish", 1, 3, 0), ("release", 1, 3, 0)]
    with pytest.raises(IllegalTransitionError) as caught:
        parts.pool(5, [*life, ("release", 1, 4, 0)])
    assert (caught.value.block, caught.value.state) == (1, "CACHED")
    assert str(caught.value) == (
        "release of block 1 by sequence 4: its state forbids that (block is CACHED; history: "
        "#1 allocate by sequence 3; #2 publish by sequence 3; #3 release by sequence 3)"
    )


def test_the_last_released_is_evicted_last(parts: ModuleType) -> None:
    steps = [("allocate", 0, 1, 0)] * 3
    steps += [
        (operation, block, 1, 0) for block in (2, 1, 3) for operation in ("publish", "release")
    ]
    assert parts.pool(5, steps)[2] == [2, 1, 3]
    assert parts.pool(5, [*steps, ("hold", 1, 1, 0)])[2] == [2, 3]
    assert parts.pool(5, [*steps, ("hold", 2, 1, 0), ("release", 2, 1, 0)])[2] == [1, 3, 2]


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5]), max_size=120),
    horizon=st.sampled_from([2, 4, 8, 2**22]),
)
def test_a_clock_that_is_set_back_forgets_only_how_long_the_longest_idle_are(
    parts: ModuleType, steps: list[int], horizon: int
) -> None:
    now, released = 0, dict.fromkeys(range(1, 6), 0)
    floor = 0  # nothing is remembered to be released before
    expected = []
    for block in steps:
        if block == 0:
            now += 1
            if now - floor == horizon:
                floor = now - horizon // 2
        else:
            del released[block]
            released[block] = now
        order = [(block, max(floor, tick)) for block, tick in released.items()]
        expected.append((now, order))
    assert parts.clock_of_rings(horizon, steps) == expected


@pytest.mark.timeout(1800)  # half a minute of computing, which others may delay
def test_the_native_core_in_lock_step_with_its_oracle_under_sanitizers(tmp_path: Path) -> None:
    """Out-of-bounds access, use after free and undefined behaviour end the process."""
    # AddressSanitizer must come first, and finds the throwing of exceptions in libstdc++.
    libraries = [compiler_file("libasan.so"), compiler_file("libstdc++.so")]
    if not all(map(Path.is_absolute, libraries)):
        pytest.skip("the compiler comes without AddressSanitizer")
    target = tmp_path / "_native.so"
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    compile_extension(ROOT / "kvcache/native/module.cpp", target, *flags)
    program = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("kvcache._native", sys.argv[1])
sys.modules["kvcache._native"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from test_kv_cores_agree import LockStep
assert module.__file__ == sys.argv[1]
run_state_machine_as_test(
    LockStep,
    settings=settings(
        max_examples=40,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    ),
)
print("done")
"""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/property")))
    environment = os.environ | {
        "PYTHONPATH": path,
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "ASAN_OPTIONS": "detect_leaks=0",  # of the interpreter
    }
    done = subprocess.run(
        [sys.executable, "-c", program, str(target)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr[-4000:]
