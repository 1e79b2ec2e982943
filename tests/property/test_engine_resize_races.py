"""Resizes in any order with whatever else an engine is asked."""

from __future__ import annotations

from typing import Any

import pytest
from engine_fakes import spec_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from resize_harness import WAIT, ResizeHarness, prompt

from service.engine.messages import FinishReason, ShrinkPolicy


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What happens before each step."""
    action = st.one_of(
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(
            st.just("submit"),
            st.tuples(
                st.integers(0, 2), st.integers(1, 40), st.integers(1, 30), st.integers(-1, 1)
            ),
        ),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(
            st.just("resize"),
            st.tuples(
                st.integers(1, 60), st.sampled_from(ShrinkPolicy), st.sampled_from([2.0, 1e6])
            ),
        ),
        st.tuples(st.just("flush"), st.none()),
    )
    return draw(st.lists(action, min_size=4, max_size=40))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    script=scripts(),
    blocks=st.integers(4, 60),
    chunk_blocks=st.sampled_from([1, 5, 1000]),
    block_tokens=st.sampled_from([1, 4, 5]),
)
def test_resizes_race_with_admissions_growth_and_aborts(
    script: list[tuple[str, Any]], blocks: int, chunk_blocks: int, block_tokens: int
) -> None:
    """Every request ends with what it would have said, or is refused or cut for its size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.engine.resize.CHUNK_BYTES", chunk_blocks * 8 * block_tokens)
        harness = ResizeHarness(blocks=blocks, max_blocks=60, block_tokens=block_tokens)
        aborted: set[int] = set()
        orders: list[int] = []
        for action, argument in script:
            if action == "step":
                for _ in range(argument):
                    harness.step()
            elif action == "submit":
                stem, tokens, max_tokens, priority = argument
                number = len(harness.specs)
                own = [*prompt(stem, 40)[:tokens], number % 256]
                harness.submit(spec_of(number, own, max_tokens=max_tokens, priority=priority))
            elif action == "abort" and argument in harness.specs:
                harness.core.abort([argument])
                aborted.add(argument)
            elif action == "resize":
                orders.append(harness.resize(*argument))
            elif action == "flush":
                harness.core.flush(None)
        orders.append(harness.resize(60, WAIT))  # whoever still waits may need all of it
        harness.run()
        harness.step()
    assert [end.call_id for end in harness.resized] == orders
    stats = harness.core.stats()
    assert (stats.blocks_held, stats.blocks_total) == (0, 60)
    refused = {r.sequence_id for report in harness.reports for r in report.refused}
    for number, spec in harness.specs.items():
        whole, said = harness.oracle(spec), harness.output(number)
        assert said == whole[: len(said)]
        if number in refused:
            assert not said
            continue
        reason = harness.finished(number).reason
        if reason is FinishReason.MAX_TOKENS:
            assert said == whole
        else:
            assert reason is FinishReason.EVICTED or number in aborted
