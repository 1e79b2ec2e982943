"""Sizes of pool and context, and what the process may use of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvcache import KVDtype, KVLayout
from service.config import EngineSettings
from service.engine.errors import StartError
from service.engine.host import usable_cores
from service.engine.sizing import context_tokens, largest_pool_blocks, pool_blocks
from service.models.config import ModelConfig, config_from_hf

GIB = 1 << 30
LAYOUT = KVLayout(layers=2, kv_heads=4, head_dim=64, block_tokens=16, dtype=KVDtype.BFLOAT16)
BLOCK_BYTES = 2 * 2 * 16 * 4 * 64 * 2


@pytest.mark.parametrize(
    ("settings", "available_bytes", "blocks"),
    [
        (EngineSettings(kv_blocks=7), GIB, 7),
        (EngineSettings(kv_blocks=7), 8 * BLOCK_BYTES, 7),
        (EngineSettings(kv_memory_bytes=100 * BLOCK_BYTES), GIB, 99),
        (EngineSettings(kv_memory_bytes=101 * BLOCK_BYTES - 1), GIB, 99),
        (EngineSettings(), 400 * BLOCK_BYTES, 99),  # a quarter, the null block included
        (EngineSettings(), 100 * GIB, GIB // BLOCK_BYTES - 1),
    ],
)
def test_pool_size(settings: EngineSettings, available_bytes: int, blocks: int) -> None:
    assert LAYOUT.block_bytes == BLOCK_BYTES
    assert pool_blocks(settings, LAYOUT, available_bytes) == blocks


@pytest.mark.parametrize(
    ("settings", "available_bytes", "message"),
    [
        (EngineSettings(kv_blocks=8), 9 * BLOCK_BYTES - 1, "kv_blocks = 8: the pool takes"),
        (EngineSettings(kv_memory_bytes=2 * GIB), GIB, "kv_memory_bytes = 2147483648: the pool"),
        (EngineSettings(), 7 * BLOCK_BYTES, "needs at least 65536 bytes"),
    ],
)
def test_pools_that_cannot_be(settings: EngineSettings, available_bytes: int, message: str) -> None:
    with pytest.raises(StartError, match=message):
        pool_blocks(settings, LAYOUT, available_bytes)


@pytest.mark.parametrize(
    ("limit_bytes", "blocks"),
    [(None, 40), (41 * BLOCK_BYTES, 40), (100 * BLOCK_BYTES, 99), (101 * BLOCK_BYTES - 1, 99)],
)
def test_the_size_that_a_pool_may_grow_to(limit_bytes: int | None, blocks: int) -> None:
    settings = EngineSettings(kv_memory_max_bytes=limit_bytes)
    assert largest_pool_blocks(settings, LAYOUT, 40) == blocks


def test_a_pool_may_not_begin_larger_than_it_may_grow() -> None:
    settings = EngineSettings(kv_memory_max_bytes=41 * BLOCK_BYTES - 1)
    limit = f"kv_memory_max_bytes = {41 * BLOCK_BYTES - 1}: the pool takes {41 * BLOCK_BYTES} bytes"
    with pytest.raises(StartError, match=limit):
        largest_pool_blocks(settings, LAYOUT, 40)


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,'
        ' "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}'
    )
    return config_from_hf(path)


@pytest.mark.parametrize(
    ("wanted", "blocks", "tokens"), [(None, 100, 128), (None, 5, 80), (64, 100, 64), (80, 5, 80)]
)
def test_context_is_the_least_of_setting_model_and_pool(
    model: ModelConfig, wanted: int | None, blocks: int, tokens: int
) -> None:
    assert context_tokens(EngineSettings(max_context_tokens=wanted), model, blocks) == tokens


@pytest.mark.parametrize(
    ("wanted", "blocks", "message"),
    [(129, 100, "the model's limit is 128"), (81, 5, "pool of 5 blocks holds 80 tokens")],
)
def test_contexts_that_cannot_be(
    model: ModelConfig, wanted: int, blocks: int, message: str
) -> None:
    with pytest.raises(StartError, match=f"max_context_tokens = {wanted}: .*{message}"):
        context_tokens(EngineSettings(max_context_tokens=wanted), model, blocks)


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
