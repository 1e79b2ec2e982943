"""A real SentencePiece vocabulary (stories260K) against the outputs recorded with llama2.c."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import write_gguf

from service.tokenizer import IncrementalDetokenizer, Tokenizer, load_tokenizer

_FOLDER = Path(__file__).parents[3] / "shared" / "data" / "stories260k"
pytestmark = pytest.mark.skipif(not _FOLDER.is_dir(), reason="the stories260K data are not here")


def _golden() -> list[dict[str, Any]]:
    golden: list[dict[str, Any]] = json.loads((_FOLDER / "golden_greedy.json").read_text())[
        "golden"
    ]
    return golden


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    stored = json.loads((_FOLDER / "tok512.json").read_text())
    ordinary = [token.replace(" ", "▁") for token in stored["tokens"][259:]]
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *stored["tokens"][3:259], *ordinary],
        "tokenizer.ggml.scores": [float(score) for score in stored["scores"]],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(ordinary),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return load_tokenizer(write_gguf(tmp_path_factory.mktemp("stories") / "s.gguf", fields))


def test_prompts_and_texts_equal_the_recorded_ones(tokenizer: Tokenizer) -> None:
    for entry in _golden():
        assert tokenizer.encode(entry["prompt"]) == entry["prompt_ids"]
        ids = entry["prompt_ids"] + entry["greedy_ids"]
        assert tokenizer.decode(ids) == entry["text"]


def test_a_completion_streams_behind_its_prompt(tokenizer: Tokenizer) -> None:
    for entry in _golden():
        if entry["prompt"]:
            detokenizer = IncrementalDetokenizer(tokenizer, at_start=False)
            pieces = [detokenizer.push([token_id]) for token_id in entry["greedy_ids"]]
            assert entry["prompt"] + "".join(pieces) + detokenizer.finish() == entry["text"]
