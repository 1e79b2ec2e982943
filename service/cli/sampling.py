"""The generation options that `generate` and `chat` share."""

from __future__ import annotations

import argparse

from service.cli.values import UINT64_MAX, number, utf8_text, whole
from service.client import GenerationOptions


def add_sampling_arguments(parser: argparse.ArgumentParser, max_tokens: int | None) -> None:
    """Flags of GenerationOptions; what is not given is the server's choice."""
    group = parser.add_argument_group("generation (not given: the default of the model)")
    group.add_argument(
        "-m",
        "--max-tokens",
        metavar="TOKENS",
        type=whole(1),
        default=max_tokens,
        help="stop after this many tokens "
        + (f"(default {max_tokens})" if max_tokens else "(default: up to the context)"),
    )
    group.add_argument(
        "-t",
        "--temperature",
        type=number(0, 2),
        metavar="T",
        help="0 is greedy and repeatable, higher is more varied; 0 to 2",
    )
    group.add_argument(
        "--top-p",
        type=number(0, 1),
        metavar="P",
        help="sample from the likeliest tokens that have this probability together",
    )
    group.add_argument(
        "--top-k", type=whole(0), metavar="K", help="sample from the K likeliest tokens; 0: all"
    )
    group.add_argument(
        "--min-p",
        type=number(0, 1),
        metavar="P",
        help="drop tokens less likely than P times the likeliest",
    )
    group.add_argument(
        "--repetition-penalty", type=number(0.01, 2), metavar="R", help="1 is none; 0.01 to 2"
    )
    group.add_argument("--presence-penalty", type=number(-2, 2), metavar="P", help="-2 to 2")
    group.add_argument("--frequency-penalty", type=number(-2, 2), metavar="P", help="-2 to 2")
    group.add_argument(
        "--seed", type=whole(0, UINT64_MAX), help="same seed, same answer (default: drawn)"
    )
    group.add_argument(
        "--stop",
        action="append",
        type=utf8_text,
        default=[],
        metavar="TEXT",
        help="stop before this text appears; may be given several times",
    )
    group.add_argument(
        "--time-limit",
        type=number(0, 86400),
        metavar="SECONDS",
        help="end the answer after this time, at most a day, and keep what there is",
    )


def options_from(arguments: argparse.Namespace) -> GenerationOptions:
    """The options that the flags ask for."""
    return GenerationOptions(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        presence_penalty=arguments.presence_penalty,
        frequency_penalty=arguments.frequency_penalty,
        seed=arguments.seed,
        stop=tuple(arguments.stop),
        time_limit_seconds=arguments.time_limit,
    )
