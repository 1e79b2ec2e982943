"""The gRPC health protocol (grpc.health.v1) with its standard meaning of Watch.

Names: the empty one is liveness (the process answers), `plimsoll.v1.InferenceService` is
readiness (send traffic), `startup` is SERVING from the first time that the model is ready on.

`grpc_health.v1.health.aio.HealthServicer` is not used: there the end of any Watch on a name
detaches all other watchers of that name from further changes, so that a load balancer would
miss NOT_SERVING because a probe hung up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.api.errors import Context
from service.front.watched import Watched

LIVENESS = ""
READINESS = "plimsoll.v1.InferenceService"
STARTUP = "startup"

_Status = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # untyped package
    """Statuses by name; names are fixed at construction, all NOT_SERVING."""

    def __init__(self, names: Iterable[str] = (LIVENESS, READINESS, STARTUP)) -> None:
        self._serving = {name: Watched(False) for name in names}

    def set(self, name: str, serving: bool) -> None:
        """Changes a status and tells its watchers."""
        self._serving[name].set(serving)

    def is_serving(self, name: str) -> bool:
        return self._serving[name].value

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._serving:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return _response(self._serving[request.service].value)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """Sends the status now and each change, until the client leaves.

        An unknown name gets SERVICE_UNKNOWN and a stream that stays open, as the protocol says.
        """
        if request.service not in self._serving:
            await context.write(_Status(status=_Status.SERVICE_UNKNOWN))
            await asyncio.Event().wait()
        async for serving in self._serving[request.service].changes():
            await context.write(_response(serving))


def _response(serving: bool) -> health_pb2.HealthCheckResponse:
    return _Status(status=_Status.SERVING if serving else _Status.NOT_SERVING)
