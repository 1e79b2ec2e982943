"""The two gRPC servers of a pod: one port for clients, one for operators."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.api.admin_servicer import EngineAdminServicer
from service.api.dispatch import InFlight, add_service
from service.api.gen.plimsoll.v1 import engine_admin_pb2, inference_pb2
from service.api.health import HealthServicer
from service.api.inference_servicer import InferenceServicer
from service.config import ServeSettings
from service.front.front import Front

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
ADMIN = engine_admin_pb2.DESCRIPTOR.services_by_name["EngineAdminService"]
_HEALTH_NAME = "grpc.health.v1.Health"

MAX_METADATA_BYTES = 16 * 1024
# gRPC's own default of 5 minutes closes the connections of clients with usual keepalives.
MIN_CLIENT_PING_INTERVAL_SECONDS = 10


class BindError(Exception):
    """An address to listen on is taken, or not of this machine."""

    def __init__(self, setting: str, address: str) -> None:
        self.setting = setting
        self.address = address
        super().__init__(f"{setting}: cannot listen on {address}: taken, or not of this machine")


@dataclass(slots=True)
class Ports:
    """Both servers, not started, and what they share."""

    inference: grpc.aio.Server
    admin: grpc.aio.Server
    health: HealthServicer
    inference_address: str
    admin_address: str
    in_flight: InFlight = field(default_factory=InFlight)  # calls of InferenceService


def open_ports(front: Front, settings: ServeSettings, served_by: str) -> Ports:
    """Builds and binds both servers. Raises BindError."""
    health = HealthServicer()
    in_flight = InFlight()

    inference = grpc.aio.server(options=server_options(settings))
    servicer = InferenceServicer(front, settings, served_by)
    trace_ratio = None if settings.otlp_endpoint is None else settings.trace_ratio
    add_service(inference, INFERENCE, servicer, in_flight, trace_ratio)
    health_pb2_grpc.add_HealthServicer_to_server(health, inference)

    admin = grpc.aio.server(options=server_options(settings))
    admin_servicer = EngineAdminServicer(front, settings.slow_reader_seconds)
    add_service(admin, ADMIN, admin_servicer, InFlight())
    health_pb2_grpc.add_HealthServicer_to_server(health, admin)
    channelz.add_channelz_servicer(admin)  # type: ignore[arg-type]  # takes aio servers too

    if settings.reflection:
        shared = (_HEALTH_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection((INFERENCE.full_name, *shared), inference)
        reflection.enable_server_reflection((ADMIN.full_name, *shared), admin)

    return Ports(
        inference,
        admin,
        health,
        _bind(inference, "port", settings.host, settings.port),
        _bind(admin, "admin_port", settings.host, settings.admin_port),
        in_flight,
    )


def server_options(settings: ServeSettings) -> list[tuple[str, int]]:
    """Channel arguments of grpc-core; times in milliseconds, sizes in bytes."""
    ping_ms = MIN_CLIENT_PING_INTERVAL_SECONDS * 1000
    keepalive_timeout_ms = round(settings.keepalive_timeout_seconds * 1000)
    return [
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
        ("grpc.keepalive_time_ms", round(settings.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", keepalive_timeout_ms),
        # A ping has a timeout of its own, 60 s by default, and that is the one that counts.
        ("grpc.http2.ping_timeout_ms", keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", ping_ms),
        # A second server on a taken port is a mistake, not a way to share the load.
        ("grpc.so_reuseport", 0),
    ]


def _bind(server: grpc.aio.Server, setting: str, host: str, port: int) -> str:
    """The address with the real port."""
    address = f"{host}:{port}"
    try:
        return f"{host}:{server.add_insecure_port(address)}"
    except RuntimeError as error:
        raise BindError(setting, address) from error
