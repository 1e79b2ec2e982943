"""`plimsoll drill` as a user has it, against a server that follows faults by the clock."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from drill_server import DrillServer, Manners, start_drill_server, wrong

from service.faults.plan import Balloon


async def drill(
    address: str, *flags: str, signalled: tuple[DrillServer, signal.Signals] | None = None
) -> tuple[int, str, str]:
    """Runs the command; `signalled`: it gets the signal when that server has a balloon."""
    command = (sys.executable, "-m", "service.cli", "drill", "--server", address)
    process = await asyncio.create_subprocess_exec(
        *(*command, "--admin-server", address, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if signalled is not None:
        server, number = signalled
        await server.until_ordered(Balloon)
        os.kill(process.pid, number)
    out, err = await asyncio.wait_for(process.communicate(), 400)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_server_without_faults_is_refused_in_one_line() -> None:
    _, server, address = await start_drill_server(wrong(allows_faults=False))
    status, out, err = await drill(address)
    await server.stop(None)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "--allow-faults" in err


async def test_no_server_is_one_line() -> None:
    status, out, err = await drill("127.0.0.1:9")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert "no server answers" in err


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_quick_drill_prints_its_verdict_and_writes_its_files(tmp_path: Path) -> None:
    _, server, address = await start_drill_server(Manners())
    document, picture = tmp_path / "drill.json", tmp_path / "drill.svg"
    flags = ("--quick", "--streams", "2", "--json", str(document), "--plot", str(picture))
    status, out, err = await drill(address, *flags)
    await server.stop(None)
    assert status == 0, out + err
    assert "the drill passed" in out
    assert "served    fake on cpu, weights in float32" in out
    assert "memory climbs" in err
    written = json.loads(document.read_text())
    assert written["schema"] == "plimsoll.drill/1"
    assert written["passed"] is True
    assert written["samples"]
    assert picture.read_bytes().startswith(b"<?xml")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_drill_and_its_faults(number: signal.Signals) -> None:
    fake, server, address = await start_drill_server(Manners())
    status, out, err = await drill(address, "--quick", signalled=(fake, number))
    await server.stop(None)
    assert (status, out) == (130, "")
    assert "Traceback" not in err
    assert fake.faults == []
    assert len(fake.plans) > 2
