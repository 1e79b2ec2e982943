"""Goodput of a real server, alone and at ten times the load that it can carry.

    python tests/bench/overload.py

A closed loop measures what the server completes in time with as many clients as serve it best.
Then requests arrive at ten times that rate, open loop (Poisson), from many tenants, each with
the same deadline. Goodput counts requests whose last token came in time. Server and clients
share the machine; the engine gets one thread, so that clients and front have a core of their
own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from live_server import serve
from overload_clients import capacity, describe, open_loop

SERVER_FLAGS = ("--threads", "1", "--allow-ignore-eos", "--log-level", "warning")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deadline", type=float, default=10.0, help="of each call, in seconds")
    parser.add_argument("--clients", default="4,8,16,32", help="of the closed loop, tried in turn")
    parser.add_argument("--alone", type=float, default=30.0, help="seconds for each of these")
    parser.add_argument("--overload", type=float, default=120.0, help="seconds")
    parser.add_argument("--factor", type=float, default=10.0, help="of the capacity")
    parser.add_argument("--tenants", type=int, default=10)
    options = parser.parse_args()
    clients = [int(n) for n in options.clients.split(",")]
    with serve(*SERVER_FLAGS) as server:
        best, load = capacity(server.address, clients, options.alone, options.deadline)
        print(f"capacity     {load.goodput:7.2f} requests/s with {best} clients")
        over = asyncio.run(
            open_loop(
                server,
                options.factor * load.goodput,
                options.overload,
                options.deadline,
                options.tenants,
            )
        )
        print(describe(over, options.deadline, load.goodput))
        print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
