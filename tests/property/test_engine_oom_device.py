"""An engine on a device that others use, too: governor, ladder and pool against real shortages.

The steps take their memory from the device and fail where it has too little. Another process
takes and gives back as it likes, all there is for a while, but in the end it leaves enough for one
request at a time in steps of a few tokens: so nobody may be refused, cut or failed.
"""

from __future__ import annotations

import numpy as np
import pytest
from engine_fakes import roomy_device, spec_of
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from resize_harness import ResizeHarness, prompt

from service.device.owner import Owner
from service.engine.figures import OomRung
from service.engine.messages import FinishReason
from service.engine.runner import StepBatch

pytestmark = pytest.mark.slow

BLOCK_BYTES = 32  # 4 tokens, 8 bytes each
MAX_CONTEXT_TOKENS = 40
LARGEST_BLOCKS = 14  # of one request: its context, and what admission and growth leave free
POOL_BLOCKS = 60
MAX_STEP_TOKENS = 64
LEAST_STEP_TOKENS = 3


def step_bytes(tokens: int, logit_rows: int, context_tokens: int) -> int:
    return 24 * tokens + 8 * logit_rows + context_tokens


LEAST_BYTES = (LARGEST_BLOCKS + 1) * BLOCK_BYTES + 2 * step_bytes(
    LEAST_STEP_TOKENS, LEAST_STEP_TOKENS, MAX_CONTEXT_TOKENS
)
DEVICE_BYTES = (POOL_BLOCKS + 1) * BLOCK_BYTES + 2 * step_bytes(
    MAX_STEP_TOKENS, 8, MAX_CONTEXT_TOKENS
)


class CrowdedHarness(ResizeHarness):
    """Takes the memory of each step from the device, and gives it back afterwards."""

    def __init__(self) -> None:
        super().__init__(
            blocks=POOL_BLOCKS,
            max_context_tokens=MAX_CONTEXT_TOKENS,
            device=roomy_device(DEVICE_BYTES),
            max_step_tokens=MAX_STEP_TOKENS,
            max_running_sequences=8,
            pool_wait_seconds=3600.0,
        )
        self.foreign_bytes = 0  # wanted by the other process
        self.runner.step_bytes = step_bytes  # type: ignore[method-assign]
        forward = self.runner.forward

        def paid_forward(batch: StepBatch) -> NDArray[np.float32]:
            self.device.set_foreign(self.foreign_bytes)
            size_bytes = step_bytes(
                len(batch.token_ids), len(batch.logit_rows), int(batch.context_lens.max())
            )
            self.runner.scribble(batch.slots[::2])
            self.device.take(Owner.ACTIVATIONS, size_bytes)
            logits = forward(batch)
            self.device.give_back(Owner.ACTIVATIONS, size_bytes)
            return logits

        self.runner.forward = paid_forward  # type: ignore[method-assign]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    walk=st.lists(
        st.tuples(
            st.integers(1, 15), st.sampled_from([0.0, 0.8, 0.9, 1.0, 2.0]) | st.floats(0.0, 1.0)
        ),
        min_size=1,
        max_size=10,
    ),
    requests=st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 30), st.integers(0, 2)),
        min_size=1,
        max_size=20,
    ),
)
def test_nobody_notices_that_others_take_memory(
    walk: list[tuple[int, float]], requests: list[tuple[int, int, int, int]]
) -> None:
    engine = CrowdedHarness()
    wanted = [
        int(share * (DEVICE_BYTES - LEAST_BYTES)) for steps, share in walk for _ in range(steps)
    ]
    for step in range(max(len(wanted), 41)):
        in_the_end = min(wanted[-1], DEVICE_BYTES - LEAST_BYTES)
        engine.foreign_bytes = wanted[step] if step < len(wanted) else in_the_end
        for number, (at, tokens, max_tokens, priority) in enumerate(requests):
            if at == step:
                engine.submit(
                    spec_of(
                        number, prompt(number, tokens), max_tokens=max_tokens, priority=priority
                    )
                )
        engine.step()
    engine.foreign_bytes = in_the_end
    engine.run()  # with what the others have left, for as long as it takes
    engine.assert_undisturbed()
    ended = [end.reason for report in engine.reports for end in report.finished]
    assert set(ended) <= {FinishReason.MAX_TOKENS, FinishReason.CONTEXT_LENGTH}
    assert len(ended) == len(requests)
    engine.foreign_bytes = 0
    engine.device.set_foreign(0)
    engine.run_until(lambda: engine.manager.usable_blocks == POOL_BLOCKS)
    vitals = engine.core.stats().vitals
    assert vitals is not None
    event(f"rungs {[bool(count) for count in vitals.rungs]}")
    event(f"actions {[bool(count) for count in vitals.actions]}")


def test_a_process_that_takes_whatever_the_ladder_gives_back_ends_nobody() -> None:
    engine = CrowdedHarness()
    engine.submit(*(spec_of(number, prompt(number, 8), max_tokens=30) for number in range(8)))
    for step in range(60):
        engine.foreign_bytes = DEVICE_BYTES if 3 <= step < 40 else 0
        engine.step()
    engine.run()
    engine.assert_undisturbed()
    assert {incident.rung for incident in engine.incidents} == set(OomRung) - {OomRung.FAIL}
