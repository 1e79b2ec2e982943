"""Show what a running server serves, with its limits and defaults."""

from __future__ import annotations

import argparse

from google.protobuf.json_format import MessageToJson

from service.cli.remote import add_server_arguments, ask

EXAMPLES = """\
examples:
  plimsoll model
  plimsoll model --json | jq .maxContextTokens
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [options]"
    parser.add_argument(
        "--json", action="store_true", help="print GetModelResponse in protobuf's JSON form"
    )
    add_server_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    model = ask(arguments, lambda client: client.model(timeout_seconds=arguments.timeout))
    if arguments.json:
        print(MessageToJson(model, always_print_fields_with_no_presence=True))
        return 0
    defaults = ", ".join(
        f"{field.name} {value:.6g}"
        for field, value in model.default_sampling.ListFields()
        if isinstance(value, float | int)
    )
    rows = {
        "model": f"{model.model} ({model.version})",
        "context": f"{model.max_context_tokens} tokens",
        "vocabulary": f"{model.vocab_size} tokens",
        "chat template": "yes" if model.supports_chat else "no",
        "defaults": defaults or "none",
        "weights": model.weights_dtype,
        "KV cache": f"{model.kv_cache_dtype}, blocks of {model.block_size_tokens} tokens",
        "device": model.device,
        "attention": model.attention_backend,
        "request limit": f"{model.max_request_bytes} bytes",
    }
    for name, value in rows.items():
        print(f"{name:<14} {value}")
    return 0
