"""How byte-level BPE vocabularies cut text into words before merging.

GGUF files name the rule (`tokenizer.ggml.pre`) and leave the regular expressions to the
reader. The rules are those of the models' own tokenizer.json, the names those of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
_SINGLE_DIGITS = (r"\p{N}", *_GPT2)
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_SUFFIX}|{_LEAD}{_UPPER}+{_LOWER}*{_SUFFIX}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", *_GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """A rule: expressions applied one after the other, each to the pieces of the last."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is that token, merges or not
    adds_bos: bool = False  # when the file does not say

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The rule as a pre-tokenizer that ends in byte characters."""
        return pre_tokenizers.Sequence(list(self._steps()))

    def _steps(self) -> Iterator[pre_tokenizers.PreTokenizer]:
        for pattern in self.patterns:
            yield pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        yield pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


_LLAMA3_RULE = PreTokenizerRule(_LLAMA3, ignore_merges=True, adds_bos=True)
_LLAMA3_LIKE_RULE = PreTokenizerRule(_LLAMA3)
_QWEN2_RULE = PreTokenizerRule(_QWEN2)
_GPT2_RULE = PreTokenizerRule(_GPT2)
_SINGLE_DIGITS_RULE = PreTokenizerRule(_SINGLE_DIGITS)
_GPT4O_RULE = PreTokenizerRule(_GPT4O)

PRE_TOKENIZER_RULES: dict[str, PreTokenizerRule] = {
    "default": PreTokenizerRule(_DEFAULT),
    "gpt-2": _GPT2_RULE,
    "mpt": _GPT2_RULE,
    "olmo": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "command-r": _SINGLE_DIGITS_RULE,
    "exaone": _SINGLE_DIGITS_RULE,
    "refact": _SINGLE_DIGITS_RULE,
    "smollm": _SINGLE_DIGITS_RULE,
    "starcoder": _SINGLE_DIGITS_RULE,
    "falcon3": _LLAMA3_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "pixtral": _LLAMA3_RULE,
    "dbrx": _LLAMA3_LIKE_RULE,
    "smaug-bpe": _LLAMA3_LIKE_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "megrez": _QWEN2_RULE,
    "qwen2": _QWEN2_RULE,
    "stablelm2": _QWEN2_RULE,
    "qwen35": PreTokenizerRule(_QWEN35),
    "tekken": PreTokenizerRule(_TEKKEN, ignore_merges=True, adds_bos=True),
    "gpt-4o": _GPT4O_RULE,
    "llama4": _GPT4O_RULE,
}
