"""The torch runner against transformers on tiny random models, and on stories260k's goldens."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers  # its parts are loaded when they are used
from runner_driver import RunnerDriver

from service.config import EngineSettings
from service.engine.build import BuiltRunner, build_runner

pytestmark = pytest.mark.slow

STORIES = Path(__file__).parents[3] / "shared/data/stories260k"
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, Callable[[], object]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "llama, biases, tied": lambda: transformers.LlamaConfig(
        **SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama3 rope": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "yarn rope": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=YARN_ROPE),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=None, head_dim=8),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=16),
}
PROMPT_LENGTHS = (1, 2, 15, 16, 17, 33, 50)
NEW_TOKENS = 12


class Case:
    """A saved random model, the runner that loaded it, and what transformers answers."""

    def __init__(
        self, config: transformers.PreTrainedConfig, folder: Path, shard_bytes: str
    ) -> None:
        torch.manual_seed(5)
        self.model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
            config
        ).eval()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(0.0, 0.3)
        self.model.save_pretrained(folder, max_shard_size=shard_bytes)
        assert (len(list(folder.glob("*.safetensors"))) > 1) == (shard_bytes == "20KB")
        self.built = build(folder)
        rng = np.random.default_rng(11)
        self.prompts = [rng.integers(3, 96, size).tolist() for size in PROMPT_LENGTHS]
        self.outputs = [greedy(self.model, prompt) for prompt in self.prompts]

    def driver(self) -> RunnerDriver:
        poison(self.built)
        return RunnerDriver(self.built.runner, self.built.num_blocks, 16)


def build(folder: Path) -> BuiltRunner:
    settings = EngineSettings(model=str(folder), dtype="float32", kv_blocks=64, threads=1)
    return build_runner(settings, lambda _: None)


def poison(built: BuiltRunner) -> None:
    """All memory that no token was written to is NaN."""
    np.frombuffer(built.arena.arena.buffer, np.float32)[:] = np.nan


def greedy(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    """Without generate(): its EOS handling would end random models early."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    return ids[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    @cache
    def make(family: str) -> Case:
        shards = "20KB" if family == "llama" else "5GB"
        return Case(FAMILIES[family](), tmp_path_factory.mktemp("model"), shards)

    return make


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk_tokens", [1, 5, 16, 64])
def test_batch_in_chunks(family: str, chunk_tokens: int, case_of: Callable[[str], Case]) -> None:
    case = case_of(family)
    driver = case.driver()
    drives = [driver.sequence(prompt) for prompt in case.prompts]
    assert driver.generate(drives, NEW_TOKENS, chunk_tokens) == case.outputs


@pytest.mark.parametrize("family", FAMILIES)
def test_alone(family: str, case_of: Callable[[str], Case]) -> None:
    case = case_of(family)
    for prompt, output in zip(case.prompts, case.outputs, strict=True):
        driver = case.driver()
        assert driver.generate([driver.sequence(prompt)], NEW_TOKENS, 64) == [output]


@pytest.mark.parametrize("prefix", [16, 32])
def test_shared_prefix_blocks(prefix: int, case_of: Callable[[str], Case]) -> None:
    case = case_of("llama")
    driver = case.driver()
    first = driver.sequence(case.prompts[-1])
    driver.generate([first], NEW_TOKENS, 64)
    prompt = case.prompts[-1][:prefix] + case.prompts[3]
    second = driver.sequence(prompt, shared=first, prefix=prefix)
    assert driver.generate([second], NEW_TOKENS, 64) == [greedy(case.model, prompt)]


@pytest.mark.skipif(not STORIES.is_dir(), reason="stories260k is not beside the repository")
def test_stories260k_goldens() -> None:
    built = build(STORIES)
    poison(built)
    driver = RunnerDriver(built.runner, built.num_blocks, 16)
    golden = json.loads((STORIES / "golden_greedy.json").read_text())["golden"]
    drives = [driver.sequence(story["prompt_ids"]) for story in golden]
    outputs = driver.generate(drives, max(len(story["greedy_ids"]) for story in golden), 7)
    for story, output in zip(golden, outputs, strict=True):
        assert output[: len(story["greedy_ids"])] == story["greedy_ids"]
