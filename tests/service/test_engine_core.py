"""EngineCore with the hash model: what comes out, what stays behind."""

from __future__ import annotations

from engine_fakes import EngineHarness, oracle_output, spec_of


def test_greedy_output_is_that_of_the_model_alone() -> None:
    harness = EngineHarness()
    spec = spec_of(1, prompt=range(40), max_tokens=20)
    harness.core.submit([spec])
    harness.run()
    assert harness.output(1) == oracle_output(spec, harness.vocab_size, 4096)
