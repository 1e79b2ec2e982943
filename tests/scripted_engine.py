"""`python tests/scripted_engine.py [options] --fd N`: an engine of the tests.

It says what the prompt tells it to, so that a test decides every token. A prompt is
`[mode, *arguments]`:

    SAY   produce the arguments, then end with EOS (the EOS id is part of the output)
    COUNT produce numbers that depend on (seed, index) alone, up to max_tokens
    WAIT  never enter the batch
    HOLD  enter the batch, produce nothing
    REFUSE never fits
    DIE   kill this process when the sequence enters the batch
    FAIL  enter the batch, then the model fails
    CRASH produce as COUNT does; abort this process instead of computing the token of the
          index that is the argument
    SLEEP enter the batch, then sleep and never wake up
    SPIN  enter the batch, then compute for ever without coming on
    EXHAUST enter the batch, then find no memory on the device

It is no scheduler: every sequence runs at once, one token a step. What it receives goes to
the file of `--record`, one JSON line each.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO

import msgspec

from service.config.engine import PREDECESSOR_VARIABLE
from service.engine.channel import Channel, ChannelClosed
from service.engine.figures import EngineStats
from service.engine.messages import (
    Abort,
    Exhausted,
    Failed,
    FaultFired,
    Finished,
    FinishReason,
    Flush,
    Flushed,
    Heartbeat,
    Inject,
    Loading,
    LookedUp,
    Lookup,
    Output,
    Ready,
    Refused,
    Resize,
    Resized,
    SequenceSpec,
    Shutdown,
    Started,
    StartFailed,
    StepReport,
    Submit,
    ToEngine,
    TokenLogprob,
)
from service.engine.pulse import Pulse
from service.faults.plan import ExitEngine

SAY, COUNT, WAIT, HOLD, REFUSE, DIE, FAIL, CRASH, SLEEP, SPIN, EXHAUST = range(1000, 1011)
EOS = 256
MAX_CONTEXT_TOKENS = 4096
POOL_BLOCKS = 1000
REST_SECONDS = 0.1


def counted_token(seed: int, index: int) -> int:
    """Token of COUNT: a printable ASCII byte."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=2).digest()
    return 33 + int.from_bytes(digest, "little") % 94


def logprob_of(token_id: int, alternatives: int) -> TokenLogprob:
    """A logprob that says which token it belongs to."""
    top = list(range(alternatives))
    return TokenLogprob(token_id, -token_id / 1000, top, [-float(i) for i in top])


class Sequence:
    """One sequence that runs."""

    def __init__(self, spec: SequenceSpec) -> None:
        self.spec = spec
        self.mode, *self.script = spec.prompt_ids
        self.outputs = list(spec.output_ids)
        self.scheduled_seconds = 0.0
        self.reason: FinishReason | None = None

    def step(self, allowed_tokens: int) -> Output | None:
        spec = self.spec
        index = len(self.outputs)
        if self.mode not in (SAY, COUNT, CRASH):
            return None
        if self.mode == COUNT and index >= allowed_tokens:
            return None
        if self.mode == CRASH and index == self.script[0]:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.abort()
        if self.mode == SAY:
            token_id = self.script[index] if index < len(self.script) else EOS
        else:
            token_id = counted_token(spec.sampling.seed, index)
        self.outputs.append(token_id)
        if token_id in spec.eos_ids:
            self.reason = FinishReason.EOS
        elif token_id in spec.stop_ids:
            self.reason = FinishReason.STOP
        elif len(self.outputs) >= spec.max_tokens:
            self.reason = FinishReason.MAX_TOKENS
        alternatives = spec.sampling.logprobs
        prompt_alternatives = spec.sampling.prompt_logprobs
        return Output(
            spec.sequence_id,
            [token_id],
            None if alternatives is None else [logprob_of(token_id, alternatives)],
            None
            if prompt_alternatives is None or index
            else [logprob_of(i, prompt_alternatives) for i in spec.prompt_ids[1:]],
        )

    def finished(self, reason: FinishReason) -> Finished:
        by_token = reason in (FinishReason.EOS, FinishReason.STOP)
        return Finished(
            sequence_id=self.spec.sequence_id,
            reason=reason,
            stop_token_id=self.outputs[-1] if by_token else None,
            recomputed_tokens=1,
            preemptions=1,
            preempted_seconds=0.25,
        )


class Engine:
    """Steps all sequences until the front leaves."""

    def __init__(
        self,
        channel: Channel,
        pulse: Pulse,
        record: IO[str] | None,
        step_seconds: float,
        ignore_aborts: bool = False,
        held_blocks: int | None = None,
        brake: Path | None = None,
        said_step_seconds: float | None = None,
    ) -> None:
        self._ignore_aborts = ignore_aborts
        self._held_blocks = held_blocks
        self._channel = channel
        self._pulse = pulse
        self._record = record
        self._step_seconds = step_seconds
        self._brake = brake
        self._said_step_seconds = step_seconds if said_step_seconds is None else said_step_seconds
        self._sequences: dict[int, Sequence] = {}
        self._blocks = POOL_BLOCKS
        self._report = StepReport([], [], [], [], self._stats())
        self._steps = 0
        self._tokens = 0

    def run(self) -> None:
        while True:
            self._pulse.beat()
            busy = any(s.mode in (SAY, COUNT, CRASH) for s in self._sequences.values())
            messages = self._channel.receive(self._step_seconds if busy else REST_SECONDS)
            for message in messages:
                if isinstance(message, Shutdown):
                    return
                self._receive(message)
            if busy or messages:
                self._step()

    def _receive(self, message: ToEngine) -> None:
        self._write(message)
        match message:
            case Submit():
                for spec in message.sequences:
                    self._submit(spec)
            case Abort() if not self._ignore_aborts:
                for sequence_id in message.sequence_ids:
                    sequence = self._sequences.pop(sequence_id, None)
                    if sequence is not None:
                        self._report.finished.append(sequence.finished(FinishReason.CANCELLED))
            case Flush():
                dropped = 7 if message.namespace is None else len(message.namespace)
                self._channel.send(Flushed(message.call_id, dropped, 3))
            case Resize():
                before, ordered = self._blocks, message.num_blocks
                self._blocks = min(ordered, self._held_blocks or ordered)
                self._channel.send(
                    Resized(message.call_id, before, self._blocks, ordered, 0, 0.0, None)
                )
            case Inject():
                for ordered in message.faults:
                    if isinstance(ordered.fault, ExitEngine):  # at once
                        self._channel.send(FaultFired(ordered.fault_id))
                        os.kill(os.getpid(), signal.SIGKILL)
            case Lookup():
                if message.token_ids != [HOLD]:
                    self._channel.send(LookedUp(message.call_id, len(message.token_ids)))

    def _submit(self, spec: SequenceSpec) -> None:
        sequence = Sequence(spec)
        if sequence.mode == REFUSE:
            self._report.refused.append(Refused(spec.sequence_id, 99, POOL_BLOCKS, 16000))
            return
        self._sequences[spec.sequence_id] = sequence
        if sequence.mode == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if sequence.mode != WAIT:
            sequence.scheduled_seconds = time.monotonic()
            cached_tokens = 2 if spec.resumed else 1
            self._report.started.append(
                Started(spec.sequence_id, cached_tokens, sequence.scheduled_seconds)
            )
        if sequence.mode == SLEEP:
            time.sleep(3600)
        while sequence.mode == SPIN:
            pass
        if sequence.mode == FAIL:
            del self._sequences[spec.sequence_id]
            self._report.failed.append(Failed(spec.sequence_id, "told to fail"))
        if sequence.mode == EXHAUST:
            del self._sequences[spec.sequence_id]
            self._report.exhausted.append(Exhausted(spec.sequence_id, 5000, 4000, 100_000))

    def _step(self) -> None:
        allowed_tokens = self._allowed_tokens()
        for sequence in list(self._sequences.values()):
            output = sequence.step(allowed_tokens)
            if output is not None:
                self._report.outputs.append(output)
                self._tokens += 1
            if sequence.reason is not None:
                del self._sequences[sequence.spec.sequence_id]
                self._report.finished.append(sequence.finished(sequence.reason))
        self._steps += 1
        self._channel.send(msgspec.structs.replace(self._report, stats=self._stats()))
        self._report = StepReport([], [], [], [], self._stats())

    def _allowed_tokens(self) -> int:
        if self._brake is None:
            return sys.maxsize
        try:
            return int(self._brake.read_text())
        except FileNotFoundError:
            return sys.maxsize

    def _stats(self) -> EngineStats:
        waiting = sum(s.mode == WAIT for s in self._sequences.values())
        held = len(self._sequences) - waiting
        return EngineStats(
            running=held,
            waiting=waiting,
            preempted=0,
            blocks_total=POOL_BLOCKS,
            blocks_free=POOL_BLOCKS - held,
            blocks_cached=0,
            blocks_held=held,
            blocks_reserved=0,
            blocks_shared=0,
            steps=getattr(self, "_steps", 0),
            prefill_tokens=0,
            decode_tokens=getattr(self, "_tokens", 0),
            lookup_tokens=0,
            hit_tokens=0,
            evicted_blocks=0,
            preemptions=0,
            step_seconds=self._said_step_seconds,
            last_step_seconds=time.monotonic(),
            busy_seconds=getattr(self, "_steps", 0) * self._said_step_seconds,
        )

    def _write(self, message: ToEngine) -> None:
        if self._record is None:
            return
        line: dict[str, object] = {"type": type(message).__name__, "pid": os.getpid()}
        match message:
            case Submit():
                line["sequences"] = [
                    {
                        "id": s.sequence_id,
                        "prompt": s.prompt_ids,
                        "outputs": s.output_ids,
                        "seed": s.sampling.seed,
                        "resumed": s.resumed,
                        "max_tokens": s.max_tokens,
                        "expected_tokens": s.expected_tokens,
                        "prompt_logprobs": s.sampling.prompt_logprobs,
                    }
                    for s in message.sequences
                ]
            case Abort():
                line["ids"] = message.sequence_ids
            case Resize():
                line["blocks"] = message.num_blocks
            case Inject():
                line["faults"] = msgspec.to_builtins([f.fault for f in message.faults])
                line["began"] = [ordered.began_seconds for ordered in message.faults]
            case Flush():
                line["namespace"] = message.namespace and message.namespace.hex()
        self._record.write(json.dumps(line) + "\n")
        self._record.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--pulse-fd", type=int, required=True)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--step-seconds", type=float, default=0.001)
    parser.add_argument("--said-step-seconds", type=float, help="what steps are said to take")
    parser.add_argument(
        "--brake", type=Path, help="COUNT produces no more tokens than this file says"
    )
    parser.add_argument("--start-failed", help="say StartFailed with this text")
    parser.add_argument("--kept-out", type=Path, help="say StartFailed while this file exists")
    parser.add_argument("--crash-at-start", action="store_true")
    parser.add_argument("--crash-after-ready", action="store_true")
    parser.add_argument("--hang-at-start", action="store_true")
    parser.add_argument("--deaf", action="store_true", help="ready, then never reads")
    parser.add_argument("--ignore-aborts", action="store_true")
    parser.add_argument("--held-blocks", type=int, help="all that the pool can be resized to")
    parser.add_argument("--garbage", action="store_true", help="ready, then no valid frame")
    parser.add_argument("--version-of-pid", action="store_true", help="a new model each time")
    parser.add_argument("--heartbeat", action="store_true", help="one right after Ready")
    arguments = parser.parse_args()

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    record = arguments.record.open("a") if arguments.record else None
    if record is not None:
        told = os.environ.get(PREDECESSOR_VARIABLE)
        start = {"pid": os.getpid(), "predecessor": None if told is None else json.loads(told)}
        record.write(json.dumps({"type": "Start", **start}) + "\n")
        record.flush()
    sock = socket.socket(fileno=arguments.fd)
    channel = Channel(sock)
    if arguments.crash_at_start:
        os._exit(3)  # at once: a process that takes long to end is killed, and its status lost
    channel.send(Loading("weights", 1, 2, "tensors"))
    if arguments.start_failed:
        channel.send(StartFailed(arguments.start_failed))
        raise SystemExit(1)
    if arguments.kept_out is not None and arguments.kept_out.exists():
        channel.send(StartFailed("others have the memory"))
        raise SystemExit(1)
    if arguments.hang_at_start:
        time.sleep(3600)
    version = str(os.getpid()) if arguments.version_of_pid else "scripted"
    channel.send(
        Ready(
            model_version=version,
            vocab_size=2000,
            max_context_tokens=MAX_CONTEXT_TOKENS,
            block_tokens=16,
            num_blocks=POOL_BLOCKS,
            max_blocks=2 * POOL_BLOCKS,
            bytes_per_block=1024,
            weights_dtype="none",
            kv_dtype="none",
            device="none",
            attention_backend="none",
            load_seconds=0.0,
        )
    )
    if arguments.crash_after_ready:
        os._exit(4)
    if arguments.deaf:
        time.sleep(3600)
    if arguments.garbage:
        sock.sendall(b"\x03\x00\x00\x00abc")
        time.sleep(3600)
    pulse = Pulse(arguments.pulse_fd)
    engine = Engine(
        channel,
        pulse,
        record,
        arguments.step_seconds,
        arguments.ignore_aborts,
        arguments.held_blocks,
        arguments.brake,
        arguments.said_step_seconds,
    )
    if arguments.heartbeat:
        channel.send(Heartbeat(engine._stats()))
    try:
        engine.run()
    except ChannelClosed:
        return


if __name__ == "__main__":
    main()
