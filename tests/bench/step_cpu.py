"""Steps of the torch runner against transformers, in one run: `python tests/bench/step_cpu.py`.

Same weights (SmolLM2-135M), same threads, bfloat16 by default. The two take turns, so that
other load of the machine hits both; medians are compared. transformers decodes with its
DynamicCache, filled with random keys and values instead of a prefill, which takes it minutes
on CPUs without bfloat16 instructions; `generate` would add its own loop on top.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from service.engine.openmp import wait_politely

wait_politely()  # as the engine does, for both sides

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from service.config import EngineSettings
from service.engine.build import BuiltRunner, build_runner
from service.engine.runner import StepBatch
from service.models.source import resolve_model

MODEL = "smollm2-135m"
DECODE_CASES = ((1, 32), (1, 512), (8, 512), (32, 32), (32, 512))
PREFILL_TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side per case")
    parser.add_argument("--alone", action="store_true", help="without transformers")
    arguments = parser.parse_args()

    built = build_runner(
        EngineSettings(
            model=MODEL, dtype=arguments.dtype, threads=arguments.threads, kv_blocks=32 * 34
        ),
        lambda _: None,
    )
    oracle = None if arguments.alone else load_oracle(getattr(torch, arguments.dtype))
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.dtype}, {arguments.threads} threads, medians of {arguments.rounds}")
    for sequences, context in DECODE_CASES:
        ours = decode_step(built, sequences, context)
        theirs = None if oracle is None else oracle_decode(oracle, sequences, context)
        report(f"decode {sequences} x {context}", ours, theirs, arguments.rounds, sequences)
    theirs = None if oracle is None else oracle_prefill(oracle)
    report(f"prefill {PREFILL_TOKENS}", prefill(built), theirs, 3, PREFILL_TOKENS)


def report(
    name: str, ours: Callable[[], None], theirs: Callable[[], None] | None, rounds: int, tokens: int
) -> None:
    """Lets both sides take turns and prints milliseconds per step and tokens per second."""
    sides = [ours] if theirs is None else [ours, theirs]
    seconds: list[list[float]] = [[] for _ in sides]
    for step in sides:
        step()
    for _ in range(rounds):
        for step, taken in zip(sides, seconds, strict=True):
            began = time.perf_counter()
            step()
            taken.append(time.perf_counter() - began)
    medians = [statistics.median(taken) for taken in seconds]
    line = f"{name:16} ours {medians[0] * 1e3:8.1f} ms {tokens / medians[0]:8.1f} tok/s"
    if theirs is not None:
        line += f"   transformers {medians[1] * 1e3:8.1f} ms   {medians[1] / medians[0]:5.2f} x"
    print(line, flush=True)


def decode_step(built: BuiltRunner, sequences: int, context: int) -> Callable[[], None]:
    """A step of `sequences` decoding tokens at position context - 1, blocks scattered."""
    width = -(-context // built.layout.block_tokens)
    order = np.random.default_rng(0).permutation(np.arange(1, built.num_blocks, dtype=np.int32))
    tables = order[: sequences * width].reshape(sequences, width)
    block, offset = divmod(context - 1, built.layout.block_tokens)
    batch = StepBatch(
        token_ids=np.full(sequences, 1000, np.int32),
        positions=np.full(sequences, context - 1, np.int32),
        slots=tables[:, block].astype(np.int64) * built.layout.block_tokens + offset,
        query_starts=np.arange(sequences + 1, dtype=np.int32),
        context_lens=np.full(sequences, context, np.int32),
        block_tables=tables,
        logit_rows=np.arange(sequences, dtype=np.int32),
    )
    return lambda: _greedy(built, batch)


def prefill(built: BuiltRunner) -> Callable[[], None]:
    """One prompt in one chunk."""
    width = -(-PREFILL_TOKENS // built.layout.block_tokens)
    at = np.arange(PREFILL_TOKENS)
    batch = StepBatch(
        token_ids=(1000 + at).astype(np.int32),
        positions=at.astype(np.int32),
        slots=(built.layout.block_tokens + at).astype(np.int64),
        query_starts=np.array([0, PREFILL_TOKENS], np.int32),
        context_lens=np.array([PREFILL_TOKENS], np.int32),
        block_tables=np.arange(1, width + 1, dtype=np.int32)[None],
        logit_rows=np.array([PREFILL_TOKENS - 1], np.int32),
    )
    return lambda: _greedy(built, batch)


def _greedy(built: BuiltRunner, batch: StepBatch) -> None:
    built.runner.forward(batch).argmax(-1)


def load_oracle(dtype: torch.dtype) -> LlamaForCausalLM:
    """The same GGUF file, read by transformers."""
    path = str(resolve_model(MODEL).path)
    fields = load_gguf_checkpoint(path)["config"]
    config = LlamaConfig(**{name: value for name, value in fields.items() if name != "model_type"})
    model = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model.to(dtype).eval()


def oracle_decode(model: LlamaForCausalLM, sequences: int, context: int) -> Callable[[], None]:
    config = model.config
    shape = (sequences, config.num_key_value_heads, context - 1, config.head_dim)
    filled = [torch.randn(shape, dtype=model.dtype) for _ in range(2)]
    ids = torch.full((sequences, 1), 1000)

    cache = DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        cache.update(*filled, layer)

    def step() -> None:
        with torch.inference_mode():
            model(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1)

    return step


def oracle_prefill(model: LlamaForCausalLM) -> Callable[[], None]:
    ids = torch.arange(1000, 1000 + PREFILL_TOKENS)[None]

    def step() -> None:
        with torch.inference_mode():
            model(input_ids=ids, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)

    return step


if __name__ == "__main__":
    main()
