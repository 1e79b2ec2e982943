"""A server without model and engine that takes faults, for tests of the drill.

Its memory, its level and its engine follow the faults that were ordered, by the clock; its
tokens depend on prompt and position alone. `Manners` says what it does wrong.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any

from google.rpc import code_pb2
from grpc import aio
from grpc_status import rpc_status
from scripted_server import UNAVAILABLE, status

from service.api.faults import check_faults_request
from service.api.gen.plimsoll.v1 import (
    common_pb2,
    engine_admin_pb2_grpc,
    inference_pb2_grpc,
)
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as admin_pb
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.faults.plan import Balloon, ExitEngine, FailAllocation, Fault, HangEngine

TOTAL_BYTES, WEIGHTS_BYTES, DEMAND_BYTES = 1_000_000_000, 400_000_000, 50_000_000
BLOCK_BYTES, CEILING_BLOCKS = 1_000_000, 400
TOKEN_SECONDS = 0.004
LOSS_TOKENS = 20  # that the stream has with which an engine is lost
DOWN_SECONDS = 0.25  # of an engine that was lost


@dataclass(frozen=True)
class Manners:
    """What the server does wrong; as it is, nothing."""

    allows_faults: bool = True
    tells_memory: bool = True
    warns: bool = True
    runs_out: bool = True
    regrows: bool = True
    restarts: bool = True
    drops: bool = False  # one stream, at the first loss of an engine
    loses: int = 0  # tokens of one stream there
    repeats: int = 0
    differs: bool = False
    dies_at: type[Fault] | None = None  # type: ignore[valid-type]  # a class of the union
    dtype: str = "float32"


@dataclass
class DrillServer(
    inference_pb2_grpc.InferenceServiceServicer, engine_admin_pb2_grpc.EngineAdminServiceServicer
):
    manners: Manners = field(default_factory=Manners)
    plans: list[list[Fault]] = field(default_factory=list)
    ordered: asyncio.Event = field(default_factory=asyncio.Event)  # set by the next plan
    began: float = 0.0
    ballooned: bool = False
    restarts: int = 0
    loss_pending: bool = False  # the next stream to have enough tokens loses the engine
    up: asyncio.Event = field(default_factory=asyncio.Event)
    refusals: int = 0  # of requests, from now on
    wronged: bool = False  # one stream had what `manners` wants
    gone: bool = False
    rungs: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    @property
    def faults(self) -> list[Fault]:
        return self.plans[-1] if self.plans else []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    async def until_ordered(self, kind: type[Fault]) -> None:  # type: ignore[valid-type]
        """Until a plan with such a fault has come."""
        while not any(isinstance(fault, kind) for fault in self.faults):
            await self.ordered.wait()

    # --- admin ---

    async def InjectFaults(self, request: Any, context: Any) -> Any:
        if self.gone:
            await context.abort_with_status(rpc_status.to_status(UNAVAILABLE))
        if not self.manners.allows_faults:
            refusal = status(code_pb2.FAILED_PRECONDITION, "FAULTS_DISABLED")
            await context.abort_with_status(rpc_status.to_status(refusal))
        self._settle()
        replaced = len(self.faults)
        self.plans.append(check_faults_request(request).faults)
        self.began = time.monotonic()
        self.ballooned |= any(isinstance(fault, Balloon) for fault in self.faults)
        self.ordered.set()
        self.ordered = asyncio.Event()
        if self.manners.dies_at and any(isinstance(f, self.manners.dies_at) for f in self.faults):
            self.gone = True
        if any(isinstance(fault, ExitEngine | HangEngine) for fault in self.faults):
            self.loss_pending = True
        return admin_pb.InjectFaultsResponse(replaced_faults=replaced)

    async def _replace_engine(self) -> None:
        await asyncio.sleep(DOWN_SECONDS)
        if self.manners.restarts:
            self.restarts += 1
            self.up.set()

    def _settle(self) -> None:
        """What the faults of a plan that ends have done stays done."""
        self.rungs = self._rungs()

    def _rungs(self) -> list[int]:
        rungs = list(self.rungs)
        fired = [f for f in self.faults if isinstance(f, FailAllocation)]
        fired = [f for f in fired if f.after_seconds <= self.elapsed]
        if not self.manners.runs_out or not fired:
            return rungs
        burst = [3, 2, 1, 0] if len(self.faults) > 1 else [0, 0, 0, 0]
        return [was + now for was, now in zip(rungs, burst, strict=True)]

    def _balloon_bytes(self) -> int:
        share = sum(f.share_at(self.elapsed) for f in self.faults if isinstance(f, Balloon))
        return int(share * TOTAL_BYTES)

    async def GetStats(self, _request: Any, context: Any) -> Any:
        if self.gone:
            await context.abort_with_status(rpc_status.to_status(UNAVAILABLE))
        balloon = self._balloon_bytes()
        room = (TOTAL_BYTES - WEIGHTS_BYTES - DEMAND_BYTES - balloon) // BLOCK_BYTES
        blocks = min(CEILING_BLOCKS, room)
        if not self.manners.regrows and self.ballooned:
            blocks = min(blocks, CEILING_BLOCKS - 1)
        rungs = self._rungs()
        level = admin_pb.PRESSURE_LEVEL_NORMAL
        if balloon and self.manners.warns:
            level = admin_pb.PRESSURE_LEVEL_ELEVATED
        if rungs != self.rungs:
            level = admin_pb.PRESSURE_LEVEL_CRITICAL
        kv_bytes = blocks * BLOCK_BYTES
        free = TOTAL_BYTES - WEIGHTS_BYTES - kv_bytes - balloon
        answer = admin_pb.GetStatsResponse(
            pressure=level,
            blocks=admin_pb.BlockStats(total=blocks, active=20, free=blocks - 20),
            engine_restarts_total=self.restarts,
        )
        if self.manners.tells_memory:
            answer.memory.CopyFrom(
                admin_pb.MemoryLedger(
                    total_bytes=TOTAL_BYTES,
                    free_bytes=free,
                    weights_bytes=WEIGHTS_BYTES,
                    kv_pool_bytes=kv_bytes,
                    other_bytes=balloon,
                    headroom_bytes=free,
                    demand_bytes=DEMAND_BYTES,
                )
            )
            answer.governor.admits = True
            answer.oom_rungs.CopyFrom(
                admin_pb.OomRungs(
                    retries_total=rungs[0],
                    shrinks_total=rungs[1],
                    requeues_total=rungs[2],
                    failures_total=rungs[3],
                )
            )
        return answer

    # --- inference ---

    async def GetModel(self, _request: Any, _context: Any) -> Any:
        return pb.GetModelResponse(
            model="fake",
            version="1",
            device="cpu",
            weights_dtype=self.manners.dtype,
            kv_cache_dtype=self.manners.dtype,
        )

    async def GenerateStream(self, request: Any, context: Any) -> Any:
        if self.refusals or self.gone:
            self.refusals -= 1
            await context.abort_with_status(rpc_status.to_status(UNAVAILABLE))
        yield pb.GenerateStreamResponse(
            start=pb.StreamStart(request_id=request.request_id, model="fake")
        )
        seed = sum(request.text.encode())
        wanted = [(seed + 37 * n) % 997 for n in range(request.options.stopping.max_tokens)]
        sent = 0
        while wanted:
            if self.gone:
                await context.abort_with_status(rpc_status.to_status(UNAVAILABLE))
            if self.loss_pending and sent == LOSS_TOKENS:
                self._lose_engine()
                wanted = await self._misbehave(wanted, seed, sent, context)
            await self.up.wait()
            token = wanted.pop(0)
            sent += 1
            await asyncio.sleep(TOKEN_SECONDS)
            delta = pb.StreamDelta(
                text=f"{token} ",
                token_ids=[token],
                finish_reason=0 if wanted else common_pb2.FINISH_REASON_MAX_TOKENS,
            )
            yield pb.GenerateStreamResponse(deltas=pb.StreamDeltas(deltas=[delta]))
        yield pb.GenerateStreamResponse(
            end=pb.StreamEnd(usage=common_pb2.Usage(completion_tokens=sent))
        )

    def _lose_engine(self) -> None:
        self.loss_pending = False
        self.up.clear()
        self._replacing = asyncio.create_task(self._replace_engine())

    async def _misbehave(self, rest: list[int], seed: int, sent: int, context: Any) -> list[int]:
        """What the stream goes on with after the first loss."""
        if self.wronged:
            return rest
        self.wronged = True
        if self.manners.drops:
            lost = status(code_pb2.ABORTED, "ENGINE_LOST")
            await context.abort_with_status(rpc_status.to_status(lost))
        if self.manners.differs:
            return [token + 1000 for token in rest]
        repeated = [(seed + 37 * n) % 997 for n in range(sent - self.manners.repeats, sent)]
        return repeated + rest[self.manners.loses :]


async def start_drill_server(manners: Manners) -> tuple[DrillServer, aio.Server, str]:
    """Serves both services on one loopback port; its address comes last."""
    drilled = DrillServer(manners)
    drilled.up.set()
    server = aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(drilled, server)
    engine_admin_pb2_grpc.add_EngineAdminServiceServicer_to_server(drilled, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return drilled, server, f"127.0.0.1:{port}"


def wrong(**manners: Any) -> Manners:
    """Good manners but for these."""
    return replace(Manners(), **manners)
