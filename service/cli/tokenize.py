"""Show the tokens of a text, as the model of a running server sees them.

Special tokens around the text are part of the answer. With --chat the text is a question
in the model's chat template."""

from __future__ import annotations

import argparse
import json
import sys

from service.cli.remote import add_server_arguments, ask
from service.cli.values import read_prompt, utf8_text
from service.client import Message, PlimsollClient, Role, Tokenization

EXAMPLES = """\
examples:
  plimsoll tokenize "Hello world"
  plimsoll tokenize --json - < prompt.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s TEXT [options]"
    parser.add_argument(
        "text", metavar="TEXT", type=utf8_text, help='the text; "-" reads it from stdin'
    )
    parser.add_argument("-c", "--chat", action="store_true", help="through the chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_server_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    prompt = read_prompt(arguments.text)

    async def work(client: PlimsollClient) -> Tokenization:
        asked = [Message(Role.USER, prompt)] if arguments.chat else prompt
        return await client.tokenize(asked, timeout_seconds=arguments.timeout)

    answer = ask(arguments, work)
    if arguments.json:
        print(
            json.dumps(
                {
                    "token_ids": answer.token_ids,
                    "max_context_tokens": answer.max_context_tokens,
                    "cached_prefix_tokens": answer.cached_prefix_tokens,
                }
            )
        )
    else:
        print(*answer.token_ids)
        print(
            f"{len(answer.token_ids)} tokens of {answer.max_context_tokens} that fit; "
            f"{answer.cached_prefix_tokens} in the prefix cache now",
            file=sys.stderr,
        )
    return 0
