"""Talk to the model of a running server.

The conversation is kept here and sent whole with each question; the server's prefix cache
makes that cheap. Ctrl-C cancels an answer (what was said so far stays in the conversation),
Ctrl-D leaves. When stdin is not a terminal each line of it is one question.

In the chat: /reset forgets the conversation, /system TEXT gives instructions and forgets
the rest, /undo takes back the last question, /help lists the commands, /exit leaves."""

from __future__ import annotations

import argparse
import asyncio
import sys

from service.cli.conversation import ChatHistory
from service.cli.failure import CommandError
from service.cli.figures import AnswerClock
from service.cli.remote import add_server_arguments, client_metadata, explain
from service.cli.sampling import add_sampling_arguments, options_from
from service.cli.values import utf8_text
from service.client import (
    GenerationOptions,
    GenerationStream,
    PlimsollClient,
    PlimsollError,
    StreamBroken,
)

EXAMPLES = """\
examples:
  plimsoll chat
  plimsoll chat --system "You are a pirate." --temperature 0.7
  printf 'My name is Ada.\\nWhat is my name?\\n' | plimsoll chat
"""

_PROMPT = "> "
_COMMANDS = """\
/reset         forget the conversation, keep the instructions
/system TEXT   give instructions (none: remove them) and forget the conversation
/undo          take back the last question and its answer
/exit          leave (as Ctrl-D)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    parser.add_argument(
        "--system", type=utf8_text, metavar="TEXT", default="", help="instructions to begin with"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no figures after an answer")
    add_sampling_arguments(parser, max_tokens=1024)
    add_server_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with asyncio.Runner() as runner:
        chat = _Chat(runner, arguments)
        try:
            chat.talk()
        finally:
            chat.close()
    return 0


class _Chat:
    """One conversation on a terminal or a pipe."""

    def __init__(self, runner: asyncio.Runner, arguments: argparse.Namespace) -> None:
        self._runner = runner
        self._target: str = arguments.server
        self._options: GenerationOptions = options_from(arguments)
        self._timeout_seconds: float | None = arguments.timeout
        self._quiet: bool = arguments.quiet
        self._history = ChatHistory(arguments.system)
        self._is_terminal = sys.stdin.isatty()
        metadata = client_metadata(arguments)

        async def connect() -> PlimsollClient:  # the channel belongs to the runner's loop
            return PlimsollClient(self._target, metadata=metadata)

        self._client = runner.run(connect())

    def close(self) -> None:
        self._runner.run(self._client.close())

    def talk(self) -> None:
        """Answers questions until the input ends."""
        if self._is_terminal:
            import readline  # noqa: F401 (line editing for input())

            self._greet()
        while (line := self._read_line()) is not None:
            if line.startswith("/"):
                if not self._obey(line):
                    return
            elif line.strip():
                self._answer(line)

    def _greet(self) -> None:
        try:
            model = self._runner.run(self._client.model(timeout_seconds=self._timeout_seconds))
        except PlimsollError as error:
            raise CommandError(explain(error, self._target)) from error
        if not model.supports_chat:
            raise CommandError(f"{model.model} has no chat template; use `plimsoll generate`")
        print(f"{model.model} at {self._target}. /help lists the commands, Ctrl-D leaves.")

    def _read_line(self) -> str | None:
        while True:
            try:
                return input(_PROMPT if self._is_terminal else "")
            except UnicodeDecodeError as error:
                raise CommandError(f"stdin is not valid UTF-8: {error}") from error
            except EOFError:
                if self._is_terminal:
                    print()
                return None
            except KeyboardInterrupt:
                if not self._is_terminal:
                    raise
                print("\n(Ctrl-D or /exit leaves)")

    def _obey(self, line: str) -> bool:
        """Runs a slash command; False: leave."""
        name, _, rest = line.partition(" ")
        match name:
            case "/exit" | "/quit":
                return False
            case "/reset":
                self._history.reset()
            case "/system":
                self._history = ChatHistory(rest.strip())
            case "/undo":
                if not self._history.undo():
                    print("nothing to take back")
            case "/help":
                print(_COMMANDS)
            case _:
                print(f"there is no command {name}; /help lists them")
        return True

    def _answer(self, question: str) -> None:
        self._history.ask(question)
        stream = self._client.chat_stream(
            self._history.messages, self._options, timeout_seconds=self._timeout_seconds
        )
        clock = AnswerClock()
        said: list[str] = []
        try:
            self._runner.run(_print_answer(stream, clock, said))
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
            print(" [cancelled]")
        except (PlimsollError, StreamBroken) as error:
            self._report(error)
        else:
            print()
            if not self._quiet:
                self._print_figures(clock.summary(stream))
        self._history.answer("".join(said))

    def _report(self, error: PlimsollError | StreamBroken) -> None:
        """On a terminal the user can try again; a script must notice."""
        text = explain(error, self._target) if isinstance(error, PlimsollError) else str(error)
        if not self._is_terminal:
            raise CommandError(text) from error
        print(f"\nplimsoll: {text}", file=sys.stderr)

    def _print_figures(self, figures: str) -> None:
        dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
        print(f"{dim}{figures}{plain}", file=sys.stderr)


async def _print_answer(stream: GenerationStream, clock: AnswerClock, said: list[str]) -> None:
    async with stream:
        async for chunk in stream:
            clock.record(chunk)
            said.append(chunk.text)
            print(chunk.text, end="", flush=True)
