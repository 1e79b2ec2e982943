"""Control tokens in rendered templates: found where the template wrote them, nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.tokenizer.errors import ChatInputError

# Private-use characters, the two supplementary planes last: one that no input holds is
# always near the front unless somebody tries hard.
_MARK_RANGES = ((0xE000, 0xF900), (0xF0000, 0xFFFFE), (0x100000, 0x10FFFE))

_MAX_DEPTH = 64  # of JSON that callers supply; the recursion below is far from Python's limit


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that text never means: only a template or the engine writes it."""

    token_id: int
    text: str
    strip_left: bool = False  # swallows the white space before it
    strip_right: bool = False  # swallows the white space after it


class ControlTokens:
    """The control tokens of a vocabulary: splits at them, and disarms their look-alikes."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        # One character cannot be disarmed from within; no template needs such a token.
        self._by_text = {token.text: token for token in tokens if len(token.text) > 1}
        pattern = _trie_pattern(sorted(self._by_text))
        self._exact = re.compile(pattern)
        self._any_case = re.compile(pattern, re.IGNORECASE)
        self._heads = _proper_parts(self._by_text, head=True)
        self._tails = _proper_parts(self._by_text, head=False)
        self._longest = max(map(len, self._by_text), default=0)

    def split(self, text: str) -> Iterator[str | ControlToken]:
        """Yields the ordinary pieces of a text and the control tokens between them, in order.

        At each place the longest control token is taken, as Hugging Face tokenizers do.
        """
        position, strip = 0, False
        for match in self._exact.finditer(text):
            token = self._by_text[match[0]]
            piece = text[position : match.start()]
            if strip:
                piece = piece.lstrip()
            if token.strip_left:
                piece = piece.rstrip()
            if piece:
                yield piece
            yield token
            position, strip = match.end(), token.strip_right
        rest = text[position:].lstrip() if strip else text[position:]
        if rest:
            yield rest

    def cut(self, text: str) -> list[str]:
        """Cuts a text inside each look-alike, so that no part holds a control token's text."""
        parts, start = [], 0
        for match in self._exact.finditer(text):
            parts.append(text[start : match.start() + 1])
            start = match.start() + 1
        parts.append(text[start:])
        return [part for part in parts if part]

    def disarm(self, text: str, mark: str) -> str:
        """Puts `mark` into each look-alike, and where the ends of the text could complete one.

        Upper and lower case count as equal, since a template may change the case. A template
        that writes both ends of a control token around a string ('<|' + name + '|>') asks
        for one with any name; only the template can prevent that.
        """
        text = self._any_case.sub(lambda match: match[0][0] + mark + match[0][1:], text)
        end = len(text.rstrip())
        for start in range(max(0, end - self._longest + 1), end):
            if text[start:end].lower() in self._heads:
                text = text[: start + 1] + mark + text[start + 1 :]
                break
        start = len(text) - len(text.lstrip())
        for end in range(min(start + self._longest - 1, len(text)), start, -1):
            if text[start:end].lower() in self._tails:
                return text[: end - 1] + mark + text[end - 1 :]
        return text


class Marker:
    """Disarms every string of one conversation with a mark that occurs in none of them."""

    def __init__(self, control: ControlTokens, inputs: Mapping[str, object]) -> None:
        """`inputs`: all that the caller supplied, JSON-like, by the name that errors show."""
        used: set[str] = set()
        for path, text in _all_strings(inputs):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ChatInputError(path, text, "is not valid Unicode (lone surrogate)") from error
            used.update(text)
        self.mark = _unused_character(used)
        self._control = control

    def disarmed(self, value: object) -> object:
        """A copy of a JSON-like value with every string in it disarmed, keys included."""
        if isinstance(value, str):
            return self.disarmed_text(value)
        if isinstance(value, Mapping):
            return {self.disarmed(key): self.disarmed(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.disarmed(item) for item in value]
        return value

    def disarmed_text(self, text: str) -> str:
        """The text with the mark inside everything that looks like a control token."""
        return self._control.disarm(text, self.mark)

    def removed(self, text: str) -> str:
        """The text without marks."""
        return text.replace(self.mark, "")


def _unused_character(used: set[str]) -> str:
    for first, end in _MARK_RANGES:
        for code in range(first, end):
            if chr(code) not in used:
                return chr(code)
    raise ChatInputError("conversation", len(used), "uses every private-use character")


def _all_strings(inputs: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in inputs.items():
        yield from _strings(value, name)


def _strings(value: object, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every string in a JSON-like value, with where it is."""
    if depth > _MAX_DEPTH:
        raise ChatInputError(path, depth, f"nests deeper than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, path, depth + 1)
            yield from _strings(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}[{index}]", depth + 1)


def _proper_parts(texts: Iterable[str], *, head: bool) -> frozenset[str]:
    parts = set()
    for text in texts:
        lower = text.lower()
        for length in range(1, len(lower)):
            parts.add(lower[:length] if head else lower[-length:])
    return frozenset(parts)


class _Trie(dict[str, "_Trie"]):
    """A character and what may follow it; the empty string marks the end of a text."""


def _trie_pattern(texts: Iterable[str]) -> str:
    """A regular expression for the longest of the texts; shared prefixes are tried once.

    A plain alternation would try each of thousands of tokens at every "<" of a text.
    """
    trie = _Trie()
    for text in texts:
        node = trie
        for char in text:
            node = node.setdefault(char, _Trie())
        node[""] = _Trie()
    return _node_pattern(trie) or "(?!)"


def _node_pattern(node: _Trie) -> str:
    branches = [re.escape(char) + _node_pattern(child) for char, child in node.items() if char]
    if not branches:
        return ""
    if "" in node:
        return f"(?:{'|'.join(branches)})?"
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
