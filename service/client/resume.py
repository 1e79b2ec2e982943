"""How a broken stream can go on without losing or repeating a character.

There are two ways, and both check what they can instead of trusting.

*Continue*: a new request whose prompt is the old prompt plus the tokens received. It
costs one prefill, usually a cache hit. It is exact when the next token depends on nothing
but the tokens before it: greedy sampling, one candidate, no presence or frequency penalty
(they count output tokens only, and the received ones have become prompt), no stop strings
(one may have begun before the break), no truncated prompt, text on.

*Replay*: the same request again with the seed that the server announced in its first
message, dropping what is already known. It costs all the decoding done so far, and fits
every other request, because the random number of token n depends on (seed, n) alone. Each
received character and id is compared with its repetition; a difference means that the
stream cannot be resumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.client.options import GenerationOptions
from service.client.outputs import Chunk


class Diverged(Exception):
    """The resumed stream is not a continuation of the broken one."""


@dataclass(slots=True)
class Received:
    """What the caller has of one candidate."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def record(self, chunk: Chunk) -> None:
        self.texts.append(chunk.text)
        self.token_ids.extend(chunk.token_ids)
        self.finished = self.finished or chunk.finish_reason is not None


class Seam:
    """Drops the part of a resumed candidate that was received before the break."""

    def __init__(self, text: str, token_ids: list[int]) -> None:
        self._text = text
        self._token_ids = token_ids

    @property
    def is_closed(self) -> bool:
        """Whether all that was received has been seen again."""
        return not self._text and not self._token_ids

    def new_text(self, text: str) -> str:
        """The part of `text` that was not received before.

        Raises:
            Diverged: the repetition differs.
        """
        overlap = min(len(text), len(self._text))
        if text[:overlap] != self._text[:overlap]:
            raise Diverged(
                f"the text differs: received {self._text[:overlap]!r}, now {text[:overlap]!r}"
            )
        self._text = self._text[overlap:]
        return text[overlap:]

    def new_tokens(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """As `new_text`, for token ids."""
        overlap = min(len(token_ids), len(self._token_ids))
        if list(token_ids[:overlap]) != self._token_ids[:overlap]:
            raise Diverged("the token ids differ")
        self._token_ids = self._token_ids[overlap:]
        return token_ids[overlap:]


def can_continue(options: GenerationOptions, received: dict[int, Received]) -> bool:
    """Whether the cheap way is exact; `options` with the server's defaults filled in."""
    kept = received.get(0)
    return (
        options.temperature == 0
        and options.candidate_count in (None, 1)
        and not options.presence_penalty
        and not options.frequency_penalty
        and not options.stop
        and not options.skip_text
        and not options.truncate_prompt_tokens
        and kept is not None
        and len(kept.token_ids) > 0
        and kept.text != ""  # before it nobody knows whether a space in front was dropped
        and not kept.finished
        and (options.max_tokens is None or len(kept.token_ids) < options.max_tokens)
    )


def continued_options(options: GenerationOptions, kept_tokens: int) -> GenerationOptions:
    """The options of a request whose prompt ends with `kept_tokens` output tokens."""
    return options.replace(
        max_tokens=None if options.max_tokens is None else options.max_tokens - kept_tokens,
        min_tokens=max(0, options.min_tokens - kept_tokens),
    )
