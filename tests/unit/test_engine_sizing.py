"""Sizes of pool and context, and what the process may use of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache import KVDtype, KVLayout
from service.config import EngineSettings
from service.engine.budget import MemoryBudget
from service.engine.errors import StartError
from service.engine.host import usable_cores
from service.engine.messages import Predecessor
from service.engine.sizing import Fit, MemoryTerms, PoolPlan, largest_step, plan_pool
from service.models.activations import StepMemory, StepShape
from service.models.config import ModelConfig, config_from_hf
from service.models.weight_bytes import WeightCopies

GIB, MIB = 1 << 30, 1 << 20
LAYOUT = KVLayout(layers=2, kv_heads=4, head_dim=64, block_tokens=16, dtype=KVDtype.BFLOAT16)
BLOCK = 2 * 2 * 16 * 4 * 64 * 2
# A process of 10 blocks, weights of 50 and 1 for every 1,000 tokens, steps of 20 and 2 for them.
HUGE = 16 << 20  # a block of a larger model
RUNTIME, WEIGHTS, STEP = 10 * BLOCK, 50 * BLOCK, 20 * BLOCK
TOKEN = BLOCK // 1000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(
        '{"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,'
        ' "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 8000}'
    )
    return config_from_hf(path)


def terms_with(capacity_bytes: int, **changes: int) -> MemoryTerms:
    weights, step = changes.get("weights", WEIGHTS), changes.get("step", STEP)
    return MemoryTerms(
        capacity_bytes=capacity_bytes,
        runtime_bytes=RUNTIME,
        weights_bytes=lambda tokens: weights + TOKEN * tokens,
        step_bytes=lambda tokens: step + 2 * TOKEN * tokens,
    )


def wanted_bytes(blocks: int, tokens: int) -> int:
    """All terms, of a pool of some blocks and a context."""
    return RUNTIME + WEIGHTS + STEP + 3 * TOKEN * tokens + (blocks + 1) * BLOCK


def device(capacity_bytes: int, **settings: Any) -> EngineSettings:
    """Settings for a device of this size that may be filled up, unless told otherwise."""
    chosen = {"gpu_memory_utilization": 1.0, **settings}
    return EngineSettings(device_memory_bytes=max(64 * MIB, capacity_bytes), **chosen)


def plan(model: ModelConfig, settings: EngineSettings, capacity_bytes: int) -> PoolPlan:
    return plan_pool(settings, model, LAYOUT, terms_with(capacity_bytes))


class TestWithoutADevice:
    """The size comes from a setting, or is a share of what the host has."""

    @pytest.mark.parametrize(
        ("settings", "capacity_bytes", "blocks"),
        [
            (EngineSettings(kv_blocks=7), GIB, 7),
            (EngineSettings(kv_blocks=7), wanted_bytes(7, 7 * 16), 7),
            (EngineSettings(kv_memory_bytes=100 * BLOCK), GIB, 99),
            (EngineSettings(kv_memory_bytes=101 * BLOCK - 1), GIB, 99),
            (EngineSettings(), RUNTIME + 4000 * BLOCK, 999),  # a quarter, null block included
            (EngineSettings(), 100 * GIB, GIB // BLOCK - 1),
            (EngineSettings(), wanted_bytes(20, 20 * 16), 20),  # a quarter would be more
        ],
    )
    def test_blocks(
        self, model: ModelConfig, settings: EngineSettings, capacity_bytes: int, blocks: int
    ) -> None:
        chosen = plan(model, settings, capacity_bytes)
        assert (chosen.blocks, chosen.max_blocks) == (blocks, blocks)

    @pytest.mark.parametrize(
        ("limit_bytes", "blocks"), [(41 * BLOCK, 40), (100 * BLOCK, 99), (101 * BLOCK - 1, 99)]
    )
    def test_the_size_that_a_pool_may_grow_to(
        self, model: ModelConfig, limit_bytes: int, blocks: int
    ) -> None:
        settings = EngineSettings(kv_blocks=40, kv_memory_max_bytes=limit_bytes)
        assert plan(model, settings, GIB) == PoolPlan(40, blocks, blocks * 16)

    def test_a_pool_may_not_begin_larger_than_it_may_grow(self, model: ModelConfig) -> None:
        settings = EngineSettings(kv_blocks=40, kv_memory_max_bytes=41 * BLOCK - 1)
        limit = f"kv_memory_max_bytes = {41 * BLOCK - 1}: the pool takes {41 * BLOCK} bytes"
        with pytest.raises(StartError, match=limit):
            plan(model, settings, GIB)

    @pytest.mark.parametrize(
        ("settings", "subject"),
        [
            (EngineSettings(kv_memory_bytes=2 * HUGE - 1), f"kv_memory_bytes = {2 * HUGE - 1}"),
            (EngineSettings(), f"kv_memory_bytes is not set, {2 * HUGE - 1} by default"),
            (
                EngineSettings(device_memory_bytes=GIB, kv_memory_max_bytes=2 * HUGE - 1),
                f"kv_memory_max_bytes = {2 * HUGE - 1}",
            ),
        ],
        ids=["given", "default", "limit"],
    )
    def test_a_size_that_holds_no_block_is_what_is_told_of(
        self, model: ModelConfig, settings: EngineSettings, subject: str
    ) -> None:
        """All the rest would fit: an error that adds it up would explain nothing."""
        layout = KVLayout(64, 4, 64, block_tokens=256, dtype=KVDtype.BFLOAT16)
        assert layout.block_bytes == HUGE
        capacity_bytes = RUNTIME + 4 * (2 * HUGE - 1)
        with pytest.raises(StartError) as caught:
            plan_pool(settings, model, layout, terms_with(capacity_bytes))
        assert str(caught.value) == (
            f"{subject}: the smallest pool, the null block and one of 256 tokens, takes "
            f"{2 * HUGE} bytes"
        )

    @pytest.mark.parametrize(
        ("wanted", "blocks", "tokens"),
        [(None, 600, 8000), (None, 5, 80), (64, 100, 64), (80, 5, 80)],
    )
    def test_context_is_the_least_of_setting_model_and_pool(
        self, model: ModelConfig, wanted: int | None, blocks: int, tokens: int
    ) -> None:
        settings = EngineSettings(max_context_tokens=wanted, kv_blocks=blocks)
        assert plan(model, settings, GIB).context_tokens == tokens

    @pytest.mark.parametrize(
        ("wanted", "blocks", "message"),
        [
            (8001, 600, "the model's limit is 8000"),
            (81, 5, "pool of 5 blocks holds 80 tokens. The largest context that would fit is 8000"),
        ],
    )
    def test_contexts_that_cannot_be(
        self, model: ModelConfig, wanted: int, blocks: int, message: str
    ) -> None:
        settings = EngineSettings(max_context_tokens=wanted, kv_blocks=blocks)
        with pytest.raises(StartError, match=f"max_context_tokens = {wanted}: .*{message}"):
            plan(model, settings, GIB)


class TestOnADevice:
    """The pool gets what the rest leaves."""

    def test_the_pool_takes_all_but_the_terms_and_not_a_block_more(
        self, model: ModelConfig
    ) -> None:
        capacity_bytes = wanted_bytes(200, 200 * 16)
        assert plan(model, device(capacity_bytes), capacity_bytes).blocks == 200
        assert plan(model, device(capacity_bytes), capacity_bytes - 1).blocks == 199

    def test_a_share_of_the_device_is_filled_and_the_pool_may_grow_to_all_of_it(
        self, model: ModelConfig
    ) -> None:
        capacity_bytes = wanted_bytes(200, 200 * 16)
        used_bytes = wanted_bytes(90, 90 * 16)
        settings = device(capacity_bytes, gpu_memory_utilization=(used_bytes + 1) / capacity_bytes)
        assert plan(model, settings, capacity_bytes) == PoolPlan(90, 200, 200 * 16)

    def test_a_limit_of_the_pool_bounds_start_and_growth(self, model: ModelConfig) -> None:
        settings = device(GIB, kv_memory_max_bytes=51 * BLOCK)
        assert plan(model, settings, GIB) == PoolPlan(50, 50, 800)
        small_bytes = wanted_bytes(20, 320)
        assert plan(model, settings, small_bytes) == PoolPlan(20, 20, 320)

    def test_a_pool_that_was_asked_for_may_fill_the_device_to_the_last_byte(
        self, model: ModelConfig
    ) -> None:
        settings = device(GIB, kv_blocks=200, gpu_memory_utilization=0.5)
        capacity_bytes = wanted_bytes(200, 200 * 16)
        assert plan(model, settings, capacity_bytes).blocks == 200
        with pytest.raises(StartError, match="kv_blocks = 200: the pool takes"):
            plan(model, settings, capacity_bytes - 1)

    def test_a_context_that_was_asked_for_is_paid_for_from_the_start(
        self, model: ModelConfig
    ) -> None:
        settings = device(GIB, max_context_tokens=3200)
        capacity_bytes = wanted_bytes(250, 3200)
        assert plan(model, settings, capacity_bytes) == PoolPlan(250, 250, 3200)

    def test_a_context_that_the_pool_cannot_hold_is_refused_with_the_one_that_it_can(
        self, model: ModelConfig
    ) -> None:
        capacity_bytes = wanted_bytes(100, 1600)
        settings = device(GIB, max_context_tokens=2000)
        with pytest.raises(StartError, match="largest context that would fit is 1600 tokens"):
            plan(model, settings, capacity_bytes)
        assert plan(model, device(GIB, max_context_tokens=1600), capacity_bytes).blocks == 100

    def test_an_error_states_every_term_and_the_context_that_would_fit(
        self, model: ModelConfig
    ) -> None:
        capacity_bytes = wanted_bytes(30, 480)
        with pytest.raises(StartError) as caught:
            plan(model, device(GIB, kv_blocks=31), capacity_bytes)
        assert str(caught.value) == (
            f"kv_blocks = 31: the pool takes {32 * BLOCK} bytes (the null block and 31 of 16 "
            f"tokens), the weights {WEIGHTS + TOKEN * 496}, the largest step "
            f"{STEP + 2 * TOKEN * 496}, the process itself {RUNTIME}: {wanted_bytes(31, 496)} "
            f"bytes are wanted, {capacity_bytes} may be taken. The largest context that would "
            "fit is 480 tokens"
        )

    def test_where_nothing_fits_the_error_says_so(self, model: ModelConfig) -> None:
        with pytest.raises(StartError, match="Not even a context of one token would fit") as caught:
            plan(model, device(GIB), wanted_bytes(1, 1) - 1)
        assert f"device_memory_bytes = {GIB}, gpu_memory_utilization = 1: " in str(caught.value)


def test_a_device_that_is_larger_than_the_machine_is_none(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of its memory would be told as that of others."""
    monkeypatch.setattr("service.engine.budget.total_memory_bytes", lambda: 4 * GIB)
    copies, step_memory = WeightCopies(2, plain=True, packed=False), StepMemory(model, 2, 1)

    def budget(size_bytes: int) -> MemoryBudget:
        return MemoryBudget(device(size_bytes), model, LAYOUT, copies, step_memory, None)

    assert 0 < budget(4 * GIB).capacity_bytes <= 4 * GIB
    limit = f"device_memory_bytes = {4 * GIB + 1}: the machine, .* has {4 * GIB} bytes"
    with pytest.raises(StartError, match=limit):
        budget(4 * GIB + 1)


capacities = st.integers(0, 4000 * BLOCK)
contexts = st.none() | st.integers(2, 8000)


@given(capacity_bytes=capacities, wanted=contexts)
def test_what_fits_with_n_blocks_fits_with_every_smaller_number(
    model: ModelConfig, capacity_bytes: int, wanted: int | None
) -> None:
    fit = Fit(8000, wanted, LAYOUT, terms_with(capacity_bytes))
    most = fit.most_blocks(capacity_bytes)
    tokens = fit.context_tokens(max(1, most))
    assert most == 0 or wanted_bytes(most, tokens) <= capacity_bytes
    assert wanted_bytes(most + 1, fit.context_tokens(most + 1)) > capacity_bytes
    for blocks in {1, most // 3, most - 1, most, most + 1, most + 100} - {0, -1}:
        settings = device(GIB, kv_blocks=blocks, max_context_tokens=wanted)
        if wanted is not None and wanted > most * 16:
            with pytest.raises(StartError, match=r"largest context|Not even"):
                plan(model, settings, capacity_bytes)
        elif blocks <= most:
            assert plan(model, settings, capacity_bytes).blocks == blocks
        else:
            with pytest.raises(StartError, match=f"kv_blocks = {blocks}: the pool takes"):
                plan(model, settings, capacity_bytes)


@given(
    capacity_bytes=capacities,
    more_bytes=st.integers(0, 100 * BLOCK),
    wanted=contexts,
    share=st.floats(0.1, 1.0),
)
def test_more_memory_never_makes_anything_smaller(
    model: ModelConfig, capacity_bytes: int, more_bytes: int, wanted: int | None, share: float
) -> None:
    settings = device(GIB, max_context_tokens=wanted, gpu_memory_utilization=share)
    try:
        less = plan(model, settings, capacity_bytes)
    except StartError:
        return
    more = plan(model, settings, capacity_bytes + more_bytes)
    assert more.blocks >= less.blocks
    assert more.max_blocks >= less.max_blocks
    assert more.context_tokens >= less.context_tokens


@given(capacity_bytes=capacities)
def test_the_largest_context_fits_and_one_token_more_does_not(
    model: ModelConfig, capacity_bytes: int
) -> None:
    fit = Fit(8000, None, LAYOUT, terms_with(capacity_bytes))
    tokens = fit.largest_context_tokens(capacity_bytes)
    settings = [device(GIB, max_context_tokens=n) for n in (tokens, tokens + 1) if 2 <= n <= 8000]
    for chosen in settings:
        if chosen.max_context_tokens == tokens:
            assert plan(model, chosen, capacity_bytes).context_tokens == tokens
        else:
            with pytest.raises(StartError):
                plan(model, chosen, capacity_bytes)


def test_the_largest_step_is_bounded_by_every_setting() -> None:
    settings = EngineSettings(max_step_tokens=100, max_running_sequences=30, prompt_logprob_rows=20)
    assert largest_step(settings, 500) == StepShape(100, 30, 50, 500)
    narrow = EngineSettings(max_step_tokens=25, max_running_sequences=30, prompt_logprob_rows=20)
    assert largest_step(narrow, 500) == StepShape(25, 25, 25, 500)


def machine(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 2), ("150000 100000", 2), ("50000 100000", 1)]
)
def test_cores_are_physical_and_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        topology = tmp_path / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    assert usable_cores(machine(tmp_path, cpu_max=quota), tmp_path) == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    assert usable_cores(tmp_path / "none", tmp_path) == 1, "two threads of one core"


class TestAfterAnotherEngine:
    """What it served is served again, with as much of its pool as there is room for."""

    BEFORE = Predecessor(blocks=200, max_blocks=300, context_tokens=8000)

    def plan(self, model: ModelConfig, capacity_bytes: int) -> PoolPlan:
        settings = device(capacity_bytes)
        return plan_pool(settings, model, LAYOUT, terms_with(capacity_bytes), self.BEFORE)

    @pytest.mark.parametrize(
        ("room_blocks", "blocks"), [(400, 200), (200, 200), (199, 199), (40, 40), (1, 1)]
    )
    def test_the_pool_begins_as_large_as_it_can(
        self, model: ModelConfig, room_blocks: int, blocks: int
    ) -> None:
        chosen = self.plan(model, wanted_bytes(room_blocks, 8000))
        assert chosen == PoolPlan(blocks, max_blocks=300, context_tokens=8000)

    def test_without_room_for_a_block_it_does_not_start(self, model: ModelConfig) -> None:
        with pytest.raises(StartError, match="no room for what the engine before served: the pool"):
            self.plan(model, wanted_bytes(1, 8000) - 1)

    def test_an_order_of_the_admin_is_taken_over(self, model: ModelConfig) -> None:
        """Whatever the settings say of the size at the start."""
        before = Predecessor(blocks=7, max_blocks=300, context_tokens=8000)
        settings = EngineSettings(kv_blocks=250)
        chosen = plan_pool(settings, model, LAYOUT, terms_with(GIB), before)
        assert chosen == PoolPlan(7, 300, 8000)
