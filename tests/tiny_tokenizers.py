"""Tiny trained tokenizers, written as Hugging Face folders and as GGUF files."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from service.models.source import ModelKind, ModelSource

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
BYTE_LEVEL_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CORPUS = [
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate.",
    "Rough winds do shake the darling buds of May, and summer's lease hath all too short a date.",
    "The ship lay low in the water; the load line was under, and still they loaded her.",
    "Käse, Straße, naïve café; Привет мир; 東京は夜の七時; 12345 67 89 km.",
    "def main():\n    return [x for x in range(10) if x % 2 == 0]\n",
]


@functools.cache
def byte_level_tokenizer() -> str:
    """tokenizer.json of a byte-level BPE with control tokens, one of them not marked so."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(BYTE_LEVEL_SPECIALS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens(
        [AddedToken("<think>", normalized=False), AddedToken("<|role|>", normalized=False)]
    )
    return tokenizer.to_str()


def hf_folder(
    folder: Path,
    tokenizer_json: str,
    *,
    config: Mapping[str, object] | None = None,
    files: Mapping[str, object] | None = None,
) -> ModelSource:
    """A folder with tokenizer.json; `files` are written as JSON, or as they are if strings."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return ModelSource(ModelKind.HF_FOLDER, folder, "tiny")


def with_bos(tokenizer_json: str, token: str, token_id: int) -> str:
    """The tokenizer with a post-processor that puts a token before every text."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, token_id)]
    )
    return tokenizer.to_str()


def write_gguf(path: Path, fields: Mapping[str, object]) -> ModelSource:
    """A GGUF file without tensors that holds these metadata."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            assert isinstance(value, Sequence)
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSource(ModelKind.GGUF, path, "tiny")


def byte_level_fields(pre: str = "gpt-2") -> dict[str, object]:
    """GGUF metadata of `byte_level_tokenizer`."""
    stored = json.loads(byte_level_tokenizer())
    ids = dict(stored["model"]["vocab"])
    ids.update({token["content"]: token["id"] for token in stored["added_tokens"]})
    tokens = sorted(ids, key=lambda token: ids[token])
    user_defined = {"<think>", "<|role|>"}  # the second one is a control token all the same
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            3 if token in BYTE_LEVEL_SPECIALS else 4 if token in user_defined else 1
            for token in tokens
        ],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in stored["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": ids["<|im_start|>"],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.chat_template": CHATML,
    }


@functools.cache
def sentencepiece_model() -> bytes:
    """A BPE model of SentencePiece with byte fallback, as Llama's is."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return model.getvalue()


def sentencepiece_fields() -> dict[str, object]:
    """GGUF metadata of `sentencepiece_model`."""
    model = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())
    count = range(model.vocab_size())
    kinds = [
        2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1
        for i in count
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in count],
        "tokenizer.ggml.scores": [float(model.get_score(i)) for i in count],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
    }


def sentencepiece_folder_tokenizer(*, prepend_scheme: str = "first") -> str:
    """tokenizer.json of `sentencepiece_model` as transformers converts it today."""
    fields = sentencepiece_fields()
    tokens = fields["tokenizer.ggml.tokens"]
    scores = fields["tokenizer.ggml.scores"]
    assert isinstance(tokens, list)
    assert isinstance(scores, list)
    score = dict(zip(tokens, scores, strict=True))
    pairs = [
        (score[token], token[:cut], token[cut:])
        for token in tokens[259:]
        for cut in range(1, len(token))
        if token[:cut] in score and token[cut:] in score
    ]
    pairs.sort(key=lambda pair: (pair[0], len(pair[1])), reverse=True)
    tokenizer = Tokenizer(
        models.BPE(
            {token: index for index, token in enumerate(tokens)},
            [(left, right) for _, left, right in pairs],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", left=1),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in ("<unk>", "<s>", "</s>")]
    )
    return tokenizer.to_str()
