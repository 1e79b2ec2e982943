"""Greedy fp32 tokens equal those of Hugging Face transformers, whatever the batch does.

The oracle generates each prompt alone, with its own KV cache and no paging. Everything the
engine may do to a sequence (neighbours, chunks, prefix hits, preemption) must leave its
tokens as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import torch
from smollm2_oracle import smollm2_in_transformers

from kvcache import CacheManager
from service.config import EngineSettings
from service.engine.build import BuiltRunner, build_runner
from service.engine.core import EngineCore
from service.engine.figures import Incident
from service.engine.messages import SamplingParams, SequenceSpec
from service.models.source import resolve_model
from service.tokenizer import ChatMessage, load_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

OUTPUT_TOKENS = 16  # every sequence begins a second block of its own

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Translate 'good morning' to Spanish.",
    "Wie heißt die Hauptstadt von Österreich?",
    "写一首关于春天的短诗。",
    "🙂🚀 What do these emoji mean?",
    "Give me a JSON object with keys a and b.",
    "Why is the sky blue?",
    "def fibonacci(n):",
    "List the planets of the solar system in order.",
    "What is 17 * 23?",
    "Summarise: The quick brown fox jumps over the lazy dog. " * 6,
)
TEXTS = (
    "Once upon a time",
    "The KV cache of a transformer",
    "import numpy as np\n\n",
    "SELECT name FROM users WHERE",
    "   leading spaces and\ttabs",
    "1, 1, 2, 3, 5, 8,",
    "It was a bright cold day in April, and the clocks were striking",
    "A",
)


@dataclass
class Oracle:
    """Prompt ids and the greedy continuation that transformers gives."""

    prompts: list[list[int]]
    outputs: list[list[int]]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    model = smollm2_in_transformers()
    tokenizer = load_tokenizer(resolve_model("smollm2-135m"))
    prompts = [tokenizer.encode_chat([ChatMessage("user", question)]) for question in QUESTIONS] + [
        tokenizer.encode(text) for text in TEXTS
    ]
    outputs = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            generated = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=OUTPUT_TOKENS,
                min_new_tokens=OUTPUT_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            outputs.append(generated[0, len(prompt) :].tolist())
    assert len({tuple(output) for output in outputs}) > 15, "the prompts are meant to vary"
    return Oracle(prompts, outputs)


@pytest.fixture(scope="module")
def built() -> BuiltRunner:
    return build_runner(
        EngineSettings(model="smollm2-135m", dtype="float32", kv_dtype="float32", kv_blocks=512),
        lambda _: None,
    )


def make_core(built: BuiltRunner, usable_blocks: int = 511, **settings: object) -> EngineCore:
    """A core with an empty cache over the shared weights; its pool is poisoned with NaN."""
    pool = np.frombuffer(built.arena.arena.buffer, np.float32)
    pool[: (usable_blocks + 1) * built.layout.block_elements] = np.nan
    engine = EngineSettings(model="smollm2-135m", dtype="float32", **settings)  # type: ignore[arg-type]
    manager = CacheManager(usable_blocks + 1, built.layout.block_tokens)
    return EngineCore(
        built.runner,
        manager,
        built.arena,
        engine,
        built.max_context_tokens,
        device=built.device,
        tell=_no_incident,
    )


def spec(sequence_id: int, prompt: list[int], max_tokens: int = OUTPUT_TOKENS) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=sequence_id,
        prompt_ids=prompt,
        output_ids=[],
        sampling=SamplingParams(temperature=0.0),
        max_tokens=max_tokens,
    )


def run(core: EngineCore, outputs: dict[int, list[int]], steps: int | None = None) -> None:
    """Steps until the core is idle, or `steps` times; collects output ids by sequence."""
    left = 100_000 if steps is None else steps
    while core.has_work and left:
        report = core.step()
        for output in report.outputs:
            outputs.setdefault(output.sequence_id, []).extend(output.token_ids)
        assert not report.refused
        left -= 1
    assert steps is not None or not core.has_work


def assert_empty(core: EngineCore) -> None:
    stats = core.stats()
    assert (stats.blocks_held, stats.running, stats.waiting) == (0, 0, 0)


def test_alone(built: BuiltRunner, oracle: Oracle) -> None:
    for index, prompt in enumerate(oracle.prompts):
        core = make_core(built, usable_blocks=32)
        outputs: dict[int, list[int]] = {}
        core.submit([spec(index, prompt)])
        run(core, outputs)
        assert outputs[index] == oracle.outputs[index]
        assert_empty(core)


def test_in_a_batch_with_others_joining_and_leaving(built: BuiltRunner, oracle: Oracle) -> None:
    core = make_core(built, max_running_sequences=16)
    outputs: dict[int, list[int]] = {}
    extra = 1000
    for index, prompt in enumerate(oracle.prompts):
        core.submit([spec(index, prompt)])
        # A passer-by with a prompt of its own leaves early, by length or by abort.
        core.submit([spec(extra, [*oracle.prompts[-index][::-1], index], max_tokens=3 + index)])
        run(core, outputs, steps=2)
        if index % 3 == 0:
            core.abort([extra])
        extra += 1
    run(core, outputs)
    for index, expected in enumerate(oracle.outputs):
        assert outputs[index] == expected
    assert_empty(core)


def test_every_prefill_chunk_size(built: BuiltRunner, oracle: Oracle) -> None:
    longest = max(range(len(oracle.prompts)), key=lambda i: len(oracle.prompts[i]))
    assert len(oracle.prompts[longest]) > 64
    for chunk in range(1, 65):
        core = make_core(built, usable_blocks=16, prefill_chunk_tokens=chunk)
        outputs: dict[int, list[int]] = {}
        core.submit([spec(1, oracle.prompts[longest], max_tokens=3)])
        run(core, outputs)
        assert outputs[1] == oracle.outputs[longest][:3], f"chunk of {chunk} tokens"


def test_prefix_hit_of_part_of_the_prompt_and_of_all_of_it(
    built: BuiltRunner, oracle: Oracle
) -> None:
    core = make_core(built)
    outputs: dict[int, list[int]] = {}
    block_tokens = built.layout.block_tokens
    for index, prompt in enumerate(oracle.prompts):
        keep = len(prompt) // 2 // block_tokens * block_tokens
        core.submit([spec(index + 100, [*prompt[:keep], 5, 6, 7], max_tokens=1)])
    run(core, outputs)
    full_blocks = sum((len(prompt) - 1) // block_tokens for prompt in oracle.prompts)
    for attempt in (200, 300):  # first a partial hit at most, then a hit of all blocks
        hits_before = core.stats().hit_tokens
        core.submit([spec(i + attempt, prompt) for i, prompt in enumerate(oracle.prompts)])
        run(core, outputs)
        for index, expected in enumerate(oracle.outputs):
            assert outputs[index + attempt] == expected
        hits = core.stats().hit_tokens - hits_before
        assert (hits == full_blocks * block_tokens) == (attempt == 300)
        assert hits > 0
    assert_empty(core)


def test_after_forced_preemption(built: BuiltRunner, oracle: Oracle) -> None:
    chosen = sorted(range(len(oracle.prompts)), key=lambda i: len(oracle.prompts[i]))[:8]
    block_tokens = built.layout.block_tokens
    prompt_blocks = sum(-(-len(oracle.prompts[i]) // block_tokens) for i in chosen)
    core = make_core(built, usable_blocks=prompt_blocks + 2, load_line=1.0)
    outputs: dict[int, list[int]] = {}
    core.submit([spec(i, oracle.prompts[i]) for i in chosen])
    run(core, outputs)
    assert core.stats().preemptions > 0
    for i in chosen:
        assert outputs[i] == oracle.outputs[i]
    assert_empty(core)


def test_continued_from_received_tokens_as_after_an_engine_death(
    built: BuiltRunner, oracle: Oracle
) -> None:
    def received(index: int) -> int:
        return 1 + index % (OUTPUT_TOKENS - 1)

    core = make_core(built)
    outputs: dict[int, list[int]] = {}
    for index, prompt in enumerate(oracle.prompts):
        sent = oracle.outputs[index][: received(index)]
        core.submit([msgspec.structs.replace(spec(index, prompt), output_ids=sent, resumed=True)])
    run(core, outputs)
    for index, expected in enumerate(oracle.outputs):
        assert outputs[index] == expected[received(index) :]
    assert_empty(core)


def test_a_common_prefix_is_computed_once(built: BuiltRunner, oracle: Oracle) -> None:
    prefix = [int(t) for t in np.random.default_rng(7).integers(1000, 40000, 2048)]
    core = make_core(built)
    outputs: dict[int, list[int]] = {}
    core.submit([spec(i, prefix + oracle.prompts[i], max_tokens=2) for i in range(16)])
    run(core, outputs)
    own = sum(len(oracle.prompts[i]) for i in range(16))
    computed = core.stats().prefill_tokens
    assert computed <= len(prefix) + own
    assert len(outputs) == 16


def _no_incident(incident: Incident) -> None:
    raise AssertionError(f"the device had memory enough, and yet: {incident}")
