"""Generate text on a running server.

The text goes to stdout while it is generated; figures go to stderr. The prompt is continued
as it stands; with --chat it is put to the model as a question, through its chat template.
A stream that breaks because the server restarts is resumed where it was."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from service.cli.failure import EXIT_USAGE, CommandError
from service.cli.figures import AnswerClock
from service.cli.remote import add_server_arguments, ask
from service.cli.sampling import add_sampling_arguments, options_from
from service.cli.values import read_prompt, utf8_text, whole
from service.client import Candidate, Generation, GenerationStream, Message, PlimsollClient, Role

EXAMPLES = """\
examples:
  plimsoll generate "Once upon a time"
  plimsoll generate --chat --temperature 0 "What is the capital of France?"
  git diff | plimsoll generate --chat --system "Summarise this diff." -
  plimsoll generate --json -n 3 --seed 7 "A haiku about the sea:"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s PROMPT [options]"
    parser.add_argument(
        "prompt", metavar="PROMPT", type=utf8_text, help='the prompt; "-" reads it from stdin'
    )
    parser.add_argument(
        "-c", "--chat", action="store_true", help="answer the prompt instead of continuing it"
    )
    parser.add_argument(
        "--system", type=utf8_text, metavar="TEXT", help="instructions; implies --chat"
    )
    parser.add_argument(
        "-n",
        "--candidates",
        type=whole(1),
        default=1,
        metavar="N",
        help="independent answers; more than one are printed when all have ended (default 1)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object with text, ids and figures"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no figures on stderr")
    add_sampling_arguments(parser, max_tokens=256)
    add_server_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    prompt = read_prompt(arguments.prompt)
    if not prompt:
        raise CommandError("the prompt is empty", EXIT_USAGE)
    ask(arguments, lambda client: _answer(client, prompt, arguments))
    return 0


def _start(client: PlimsollClient, prompt: str, arguments: argparse.Namespace) -> GenerationStream:
    options = options_from(arguments).replace(candidate_count=arguments.candidates)
    if not arguments.chat and arguments.system is None:
        return client.stream(prompt, options, timeout_seconds=arguments.timeout)
    messages = [Message(Role.USER, prompt)]
    if arguments.system is not None:
        messages.insert(0, Message(Role.SYSTEM, arguments.system))
    return client.chat_stream(messages, options, timeout_seconds=arguments.timeout)


async def _answer(client: PlimsollClient, prompt: str, arguments: argparse.Namespace) -> None:
    clock = AnswerClock()
    live = arguments.candidates == 1 and not arguments.json
    async with _start(client, prompt, arguments) as stream:
        chunks = []
        try:
            async for chunk in stream:
                clock.record(chunk)
                chunks.append(chunk)
                if live:
                    print(chunk.text, end="", flush=True)
        finally:  # what broke it is told on a line of its own
            if live and chunks:
                print(flush=True)
        answer = stream.generation(chunks)
    if arguments.json:
        print(json.dumps(_as_json(answer, stream, clock), ensure_ascii=False))
        return
    if not live:
        for candidate in answer.candidates:
            print(f"[{candidate.index}] {candidate.text}")
    if not arguments.quiet:
        ends = ", ".join(candidate.finish_reason.label for candidate in answer.candidates)
        print(f"{clock.summary(stream)} · ended by {ends}", file=sys.stderr)


def _as_json(answer: Generation, stream: GenerationStream, clock: AnswerClock) -> dict[str, object]:
    return {
        "request_id": answer.request_id,
        "model": answer.model,
        "seed": stream.start.seed if stream.start else None,
        "candidates": [_candidate(candidate) for candidate in answer.candidates],
        "usage": asdict(answer.usage),
        "timings": asdict(answer.timings),
        "client": {
            "ttft_seconds": clock.ttft_seconds,
            "tokens_per_second": clock.tokens_per_second,
            "resumptions": stream.resumptions,
        },
    }


def _candidate(candidate: Candidate) -> dict[str, object]:
    return {
        "index": candidate.index,
        "text": candidate.text,
        "token_ids": candidate.token_ids,
        "finish_reason": candidate.finish_reason.label,
    }
