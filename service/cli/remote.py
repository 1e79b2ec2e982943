"""How the client commands find a server and explain that they cannot use it."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import TypeVar

import grpc

from service.cli.failure import CommandError
from service.cli.values import positive, printable_ascii
from service.client import (
    DEFAULT_ADMIN_TARGET,
    DEFAULT_TARGET,
    PlimsollClient,
    PlimsollError,
    StreamBroken,
)

SERVER_VARIABLE = "PLIMSOLL_SERVER"
ADMIN_SERVER_VARIABLE = "PLIMSOLL_ADMIN_SERVER"

T = TypeVar("T")


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the server is and who asks."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--server",
        metavar="HOST:PORT",
        default=os.environ.get(SERVER_VARIABLE) or DEFAULT_TARGET,
        help=f"server to ask (default: {SERVER_VARIABLE} or {DEFAULT_TARGET})",
    )
    group.add_argument(
        "--tenant", type=printable_ascii, metavar="NAME", help="tenant to ask as (default: none)"
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive,
        help="give up after this time (default: never)",
    )


def add_admin_argument(parser: argparse.ArgumentParser) -> None:
    """Where the admin port is."""
    parser.add_argument(
        "--admin-server",
        metavar="HOST:PORT",
        default=os.environ.get(ADMIN_SERVER_VARIABLE) or DEFAULT_ADMIN_TARGET,
        help=f"admin port to ask (default: {ADMIN_SERVER_VARIABLE} or {DEFAULT_ADMIN_TARGET})",
    )


def client_metadata(arguments: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """Call metadata that the server arguments ask for."""
    return (("x-tenant-id", arguments.tenant),) if arguments.tenant else ()


def ask(
    arguments: argparse.Namespace, work: Callable[[PlimsollClient], Coroutine[None, None, T]]
) -> T:
    """Runs `work` with a connected client; its errors become CommandErrors."""

    async def connected() -> T:
        client = PlimsollClient(arguments.server, metadata=client_metadata(arguments))
        async with client:
            return await work(client)

    return translate_errors(arguments.server, connected())


def translate_errors(target: str, work: Coroutine[None, None, T]) -> T:
    """Runs a coroutine that talks to `target`; its errors become CommandErrors."""
    try:
        return asyncio.run(work)
    except PlimsollError as error:
        raise CommandError(explain(error, target)) from error
    except StreamBroken as error:
        raise CommandError(str(error)) from error


def explain(error: PlimsollError, target: str) -> str:
    """One line for people: what happened and what to do."""
    if error.code is grpc.StatusCode.UNAVAILABLE and not error.reason:
        return (
            f"no server answers at {target}; start one with `plimsoll serve`, or name another"
            " with --server, or --admin-server for its admin port"
        )
    if error.code is grpc.StatusCode.UNIMPLEMENTED and not error.reason:
        return (
            f"{target} does not answer this call; the inference port (9000 by default) and the"
            " admin port (9001) are apart"
        )
    if error.reason == "NOT_READY":
        return f"the server at {target} is still loading its model; try again when it is ready"
    if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "the time given with --timeout is over"
    if error.reason == "FAULTS_DISABLED":
        return f"the server at {target} takes no faults; start it with --allow-faults"
    if error.reason == "FEATURE_DISABLED" and "ignore_eos" in str(error):
        return "the server does not allow ignore_eos; start it with --allow-ignore-eos"
    return str(error)
