"""Bounds of what steps and weights take: pure functions of shapes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.trial_step import null_batch, trial_shape
from service.models.activations import StepMemory, StepShape, most_padded_rows
from service.models.config import ModelConfig, config_from_hf
from service.models.torch_linear import padded_rows
from service.models.weight_bytes import WeightCopies, weight_bytes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return config_of(tmp_path_factory.mktemp("model"), "")


def config_of(folder: Path, more: str) -> ModelConfig:
    path = folder / "config.json"
    path.write_text(
        '{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576,'
        ' "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,'
        ' "num_key_value_heads": 3, "max_position_embeddings": 8192' + more + "}"
    )
    return config_from_hf(path)


shapes = st.builds(
    StepShape,
    tokens=st.integers(1, 4096),
    sequences=st.integers(1, 256),
    logit_rows=st.integers(0, 256),
    context_tokens=st.integers(1, 100_000),
)


@given(shape=shapes, name=st.sampled_from([f.name for f in fields(StepShape)]), more=st.integers(1))
def test_a_larger_step_never_takes_less(
    model: ModelConfig, shape: StepShape, name: str, more: int
) -> None:
    memory = StepMemory(model, kv_number_bytes=2, threads=2)
    larger = replace(shape, **{name: getattr(shape, name) + more})
    assert memory.step_bytes(larger) >= memory.step_bytes(shape)


@given(rows=st.integers(0, 100_000))
def test_padding_is_not_underestimated(rows: int) -> None:
    assert padded_rows(rows) <= most_padded_rows(rows)


def test_a_step_that_takes_more_than_was_said_raises_all(model: ModelConfig) -> None:
    memory = StepMemory(model, kv_number_bytes=2, threads=2)
    small, large = StepShape(10, 1, 1, 100), StepShape(512, 64, 64, 4000)
    said_bytes = memory.step_bytes(small)
    assert memory.corrected(small, said_bytes - 1) == memory
    raised = memory.corrected(small, 3 * said_bytes)
    assert raised.step_bytes(small) == 3 * said_bytes
    assert raised.step_bytes(large) == pytest.approx(3 * memory.step_bytes(large), rel=1e-6)
    assert raised.corrected(small, 6 * said_bytes).step_bytes(small) == 6 * said_bytes


def test_weights_of_a_model_whose_size_is_known(model: ModelConfig, tmp_path: Path) -> None:
    """SmolLM2-135M has 134,515,008 parameters, the embedding tied to the head."""
    parameters, embedding, head_dim = 134_515_008, 49152 * 576, 64
    tied = replace(model, tied_embeddings=True)
    norms = 61 * 576
    rotations = 4 * 1000 * 2 * head_dim
    plain = weight_bytes(tied, WeightCopies(2, plain=True, packed=False), 1000)
    assert plain == 2 * (parameters - norms) + 4 * norms + rotations
    hybrid = weight_bytes(tied, WeightCopies(2, plain=True, packed=True), 1000)
    assert hybrid == plain + 4 * (parameters - norms)
    packed = weight_bytes(tied, WeightCopies(4, plain=False, packed=True), 1000)
    assert packed == 4 * parameters + 4 * embedding + rotations
    untied = config_of(tmp_path, ', "tie_word_embeddings": false')
    assert weight_bytes(untied, WeightCopies(2, True, False), 1000) == plain + 2 * embedding


LARGE = {"hidden_size": 8192, "intermediate_size": 28672, "layers": 80, "heads": 64}


@given(shape=shapes, is_large=st.booleans())
def test_the_step_on_trial_is_no_larger_and_no_work_of_seconds(
    model: ModelConfig, shape: StepShape, is_large: bool
) -> None:
    config = replace(model, **LARGE) if is_large else model
    trial = trial_shape(config, shape)
    assert 1 <= trial.tokens <= min(shape.tokens, trial.context_tokens)
    assert trial.context_tokens <= shape.context_tokens
    assert trial.logit_rows == trial.sequences == 1
    inner = 3 * config.intermediate_size * config.hidden_size
    products = trial.tokens * (inner + 2 * trial.context_tokens * config.heads * config.head_dim)
    assert trial.tokens == 1 or 2 * products <= 8e9


def test_a_step_that_is_small_is_tried_as_it_is(model: ModelConfig) -> None:
    assert trial_shape(model, StepShape(64, 8, 8, 512)) == StepShape(64, 1, 1, 512)
    large = trial_shape(model, StepShape(512, 64, 128, 8192))
    assert (large.context_tokens, large.tokens) == (8192, 128)


@given(tokens=st.integers(1, 200), before=st.integers(0, 200), block_tokens=st.integers(1, 32))
def test_a_batch_on_trial_stays_in_the_null_block(
    tokens: int, before: int, block_tokens: int
) -> None:
    batch = null_batch(StepShape(tokens, 1, 1, tokens + before), block_tokens, token_id=7)
    assert batch.slots.max() < block_tokens
    assert not batch.block_tables.any()
    assert batch.block_tables.size * block_tokens >= tokens + before
    assert batch.positions.tolist() == list(range(before, tokens + before))
    assert batch.logit_rows.tolist() == [tokens - 1]
    assert set(batch.token_ids.tolist()) == {7}
