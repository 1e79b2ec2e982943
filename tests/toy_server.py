"""`python tests/toy_server.py --ready-file FILE [--port P]`: all of a server but the model.

Real API, front and engine process over the fake runner: it starts in a second and says
letters that depend on everything before them. For tests of what talks to a server.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop
from paced_engine import paced_command

from service.api.server import Addresses, StopSignals, serve_front
from service.config import EngineSettings, ServeSettings
from service.front.front import Front

FOLDER = Path(__file__).parent
ENGINE_COMMAND = (sys.executable, str(FOLDER / "fake_engine.py"))
EOS = 0


class ToyTokenizer:
    """Token i is the character i of Latin-1; control characters are dots; 0 is EOS."""

    strips_leading_space = False
    has_chat_template = True
    eos_ids = (EOS,)
    bos_id = None
    vocab_size = 256

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS

    def token_bytes(self, token_id: int) -> bytes:
        return (chr(token_id) if chr(token_id).isprintable() else ".").encode()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002
        return [max(1, ord(character) % 256) for character in text]

    def encode_chat(self, messages: Sequence[Any], **_options: object) -> list[int]:
        return self.encode("".join(f"{m.role}:{m.content}\n" for m in messages))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        kept = (i for i in ids if not (skip_special and self.is_special(i)))
        return b"".join(map(self.token_bytes, kept)).decode()


async def main(arguments: argparse.Namespace) -> None:
    settings = ServeSettings(
        engine=EngineSettings(model="toy", kv_blocks=arguments.kv_blocks),
        port=arguments.port,
        admin_port=0,
        metrics_port=0,
        allow_ignore_eos=not arguments.no_ignore_eos,
        max_waiting_requests=arguments.max_waiting_requests,
        grace_seconds=arguments.grace_seconds,
        gpu_sample_seconds=arguments.gpu_sample_seconds,
    )
    folder = arguments.paced_in
    command = ENGINE_COMMAND if folder is None else paced_command(folder)
    front = Front(settings, engine_command=command, tokenizer=ToyTokenizer())  # type: ignore[arg-type]
    signals = StopSignals()
    signals.install()

    def ready(addresses: Addresses) -> None:
        part = arguments.ready_file.with_suffix(".part")
        part.write_text(f"{addresses.inference}\n{addresses.admin}\n{addresses.metrics}\n")
        part.replace(arguments.ready_file)

    await serve_front(front, settings, signals, ready)


class ToyServer:
    """A running toy server and its addresses."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        address: str,
        admin_address: str,
        metrics_address: str,
    ) -> None:
        self.process = process
        self.address = address
        self.admin_address = admin_address
        self.metrics_address = metrics_address

    def kill(self) -> None:
        """As the OOM killer does."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def toy_server(folder: Path, *flags: str, limit_seconds: float = 200.0) -> Iterator[ToyServer]:
    """Runs a toy server until the block ends."""
    ready, log = folder / "toy-ready", folder / "toy-log"
    ready.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--ready-file", str(ready), *flags]
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        give_up = time.monotonic() + limit_seconds
        while not ready.exists():
            assert process.poll() is None, f"the toy server died:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < give_up, f"the toy server hangs:\n{log.read_text()[-3000:]}"
            time.sleep(0.02)
        yield ToyServer(process, *ready.read_text().split())
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kv-blocks", type=int, default=512)
    parser.add_argument("--max-waiting-requests", type=int, default=64)
    parser.add_argument("--grace-seconds", type=float, default=0.0)
    parser.add_argument("--gpu-sample-seconds", type=float, default=0.0)
    parser.add_argument("--paced-in", type=Path, help="obey each Pace of this folder")
    parser.add_argument("--no-ignore-eos", action="store_true")
    uvloop.run(main(parser.parse_args()))
