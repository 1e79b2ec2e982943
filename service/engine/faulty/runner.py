"""A runner whose steps fail, end the process, stand still, or take long, as ordered."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.device.errors import DeviceLostError, DeviceOutOfMemoryError
from service.device.memory import DeviceMemory
from service.device.owner import Owner
from service.engine.faulty.process import end_process, stand_still
from service.engine.faulty.schedule import FaultSchedule, StepStrike
from service.engine.runner import Runner, StepBatch
from service.faults.plan import ExitEngine, FailAllocation, HangEngine, LoseDevice

# Within the block it calls back ahead of each operator, with its number from 0 on.
Operators: TypeAlias = Callable[[Callable[[int], None]], AbstractContextManager[object]]

# Of all places in a step so many are before its first operator, and as many after its last one.
_EDGE = 1 / 8
# Of a step of which it is not known yet how many operators it has.
_FEW_OPERATORS = 64
# A slow device is not a frozen one: it beats so often.
_BEAT_SECONDS = 0.1
_LOST = "CUDA error: an illegal memory access was encountered (on purpose: a fault was ordered)"


class FaultyRunner:
    """Wraps a `Runner`; what it does to it comes out as from a real device.

    An allocation that fails inside a step raises the very error of torch's allocator there, so
    that keys and values are written in some layers and not in others.
    """

    def __init__(
        self,
        runner: Runner,
        device: DeviceMemory,
        schedule: FaultSchedule,
        operators: Operators,
        *,
        fired: Callable[[int], None],
        beat: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`fired` hears the number of a fault before it is carried out."""
        self._runner = runner
        self._device = device
        self._schedule = schedule
        self._operators = operators
        self._fired = fired
        self._beat = beat
        self._clock = clock
        self._num_operators = 0  # of the last step that was counted; 0: none was
        self._is_lost = False

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    def step_bytes(self, tokens: int, logit_rows: int, context_tokens: int) -> int:
        return self._runner.step_bytes(tokens, logit_rows, context_tokens)

    def forward(self, batch: StepBatch) -> NDArray[np.float32]:
        if self._is_lost:
            raise DeviceLostError(_LOST)
        strike = self._schedule.strike_step(self._clock())
        if strike is not None:
            self._strike(strike, batch)
        logits = self._count_once(batch) if self._schedule.awaits_step else None
        if logits is None:
            logits = self._runner.forward(batch)
        self._be_slow()
        return logits

    def _strike(self, strike: StepStrike, batch: StepBatch) -> NoReturn:
        """Goes as far into the step as the strike says, and carries it out there."""
        if strike.place >= _EDGE:
            share = (strike.place - _EDGE) / (1 - 2 * _EDGE)  # 1 and more: behind the last one
            struck_operator = int(share * (self._num_operators or _FEW_OPERATORS))
            is_struck = False

            def before(operator: int) -> None:
                nonlocal is_struck
                if operator == struck_operator and share < 1:
                    is_struck = True
                    self._carry_out(strike, batch, inside=True)

            try:
                with self._operators(before):
                    self._runner.forward(batch)
            except DeviceOutOfMemoryError:  # on purpose, or the step came to no memory by itself
                if is_struck:
                    raise
        self._carry_out(strike, batch, inside=False)

    def _carry_out(self, strike: StepStrike, batch: StepBatch, *, inside: bool) -> NoReturn:
        """`inside`: torch and the runner are to make of it what they make of the real thing."""
        self._fired(strike.fault_id)
        match strike.fault:
            case FailAllocation():
                self._fail_allocation(batch, inside=inside)
            case LoseDevice():
                self._is_lost = True
                raise RuntimeError(_LOST) if inside else DeviceLostError(_LOST)
            case ExitEngine(signal=signal_number, status=status):
                end_process(signal_number, status)
            case HangEngine():
                stand_still()

    def _fail_allocation(self, batch: StepBatch, *, inside: bool) -> NoReturn:
        context_tokens = int(batch.context_lens.max())
        wanted_bytes = self._runner.step_bytes(
            len(batch.token_ids), len(batch.logit_rows), context_tokens
        )
        if inside:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] err == 0. DefaultCPUAllocator: can't allocate "
                f"memory: you tried to allocate {wanted_bytes} bytes. Error code 12 (Cannot "
                "allocate memory)"
            )
        figures = self._device.figures()
        raise DeviceOutOfMemoryError(
            Owner.ACTIVATIONS, wanted_bytes, figures.free_bytes, figures.total_bytes
        )

    def _count_once(self, batch: StepBatch) -> NDArray[np.float32] | None:
        """Computes a step and counts its operators, the first time."""
        if self._num_operators:
            return None
        last = -1

        def before(operator: int) -> None:
            nonlocal last
            last = operator

        with self._operators(before):
            logits = self._runner.forward(batch)
        self._num_operators = last + 1
        return logits

    def _be_slow(self) -> None:
        left_seconds = self._schedule.extra_seconds(self._clock())
        while left_seconds > 0:
            time.sleep(min(left_seconds, _BEAT_SECONDS))
            left_seconds -= _BEAT_SECONDS
            self._beat()
