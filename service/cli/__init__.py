"""The `plimsoll` command.

`main` only finds the subcommand; its module is imported when it is used, so that help is
instant. A command's module has `SUMMARY` nowhere else than in the table below, fills an
argparse parser in `add_arguments`, and does its work in `run`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from service.cli.failure import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
)

_COMMANDS = {
    "serve": "serve a model over gRPC",
    "generate": "continue a text, or answer a question, on a running server",
    "chat": "talk to the model of a running server",
    "bench": "put load on a running server and measure it",
    "replay": "play a recorded trace through the cache manager, without a model",
    "tokenize": "show the tokens of a text",
    "model": "show what a running server serves, with its limits",
    "stats": "show counters and KV cache use of a running server",
    "smi": "watch memory, KV cache and load of running servers, as nvidia-smi does GPUs",
    "memory": "grow or shrink the KV cache of a running server",
    "drill": "run a server out of memory on purpose, and see whether anybody notices",
    "fault": "make things go wrong on purpose in a running server",
    "flight": "show what servers wrote down when something went wrong",
    "version": "print the version",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0, or 1 when it failed, 2 when it was called wrongly, 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except CommandError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output left, as in `plimsoll … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except SystemExit as leaving:  # argparse: 0 after --help, 2 after a usage error
        return leaving.code if isinstance(leaving.code, int) else EXIT_USAGE


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        print(_overview(), file=sys.stderr)
        return EXIT_USAGE
    name, rest = arguments[0], arguments[1:]
    if name in ("-h", "--help", "help"):
        if name == "help" and rest:
            return _dispatch([rest[0], "--help"])
        print(_overview())
        return EXIT_OK
    if name == "--version":
        name = "version"
    if name not in _COMMANDS:
        close = difflib.get_close_matches(name, _COMMANDS, n=1)
        hint = f"did you mean `{close[0]}`?" if close else "`plimsoll --help` lists them"
        raise CommandError(f"there is no command `{name}`; {hint}", EXIT_USAGE)
    module = importlib.import_module(f"service.cli.{name}")
    parser = argparse.ArgumentParser(
        prog=f"plimsoll {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=module.EXAMPLES,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(rest))
    return status


def _overview() -> str:
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in _COMMANDS.items())
    return f"""\
usage: plimsoll COMMAND [options]

An LLM inference server with a paged KV cache, and the tools to use it.

commands:
{commands}

`plimsoll COMMAND --help` explains a command.

examples:
  plimsoll serve                                  serve SmolLM2-135M on 127.0.0.1:9000
  plimsoll generate --chat "Why is the sky blue?"
  plimsoll chat
  plimsoll bench --concurrency 8 --requests 64

The other commands look for the server at 127.0.0.1:9000, or where --server or the
variable PLIMSOLL_SERVER says."""
