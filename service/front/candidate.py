"""One candidate: turns its tokens into text, looks for stops, merges what is not yet sent."""

from __future__ import annotations

from service.engine.messages import FinishReason, Output, TokenLogprob
from service.front.call import GenerationCall
from service.front.events import Delta
from service.tokenizer.incremental import IncrementalDetokenizer, TokenDecoder
from service.tokenizer.stops import StopMatcher

_ID_BYTES = 4
_LOGPROB_BYTES = 12  # one id and one logprob


class Candidate:
    """State of one output sequence between the engine and the client.

    Ids and logprobs are pending from the moment a token is received, its text from the
    moment it is known not to be part of a stop string or of an unfinished character. So
    ids and logprobs are aligned by position whatever is merged, and text may follow later.
    """

    __slots__ = (
        "_bypass_tokens",
        "_call",
        "_detokenizer",
        "_eos_ids",
        "_finish_sent",
        "_heard_seconds",
        "_ids",
        "_logprobs",
        "_matcher",
        "_stop_ids",
        "_stop_token_id",
        "_text",
        "_tokens_since_delta",
        "finish_reason",
        "index",
        "matched_stop",
        "output_tokens",
        "pending_bytes",
        "sequence_id",
    )

    def __init__(
        self,
        index: int,
        sequence_id: int,
        call: GenerationCall,
        tokenizer: TokenDecoder,
        eos_ids: tuple[int, ...],
        matcher: StopMatcher | None,
    ) -> None:
        """`matcher` is this candidate's own; None when there are no stop strings."""
        self.index = index
        self.sequence_id = sequence_id
        self.finish_reason: FinishReason | None = None
        self.matched_stop: str | None = None
        self.output_tokens = 0
        self.pending_bytes = 0
        self._call = call
        self._eos_ids = frozenset(eos_ids)
        self._stop_ids = frozenset(call.stop_ids)
        self._matcher = matcher
        # Text of the first min_tokens tokens is not searched for stop strings.
        self._bypass_tokens = call.min_tokens
        self._detokenizer: IncrementalDetokenizer | None = None
        if matcher is not None or not call.skip_text:
            self._detokenizer = IncrementalDetokenizer(
                tokenizer,
                skip_special=not call.keep_special_tokens,
                at_start=not call.continues_text,
            )
        self._stop_token_id: int | None = None
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._tokens_since_delta = 0
        self._finish_sent = False
        self._heard_seconds: float | None = None

    @property
    def unsent_tokens(self) -> int:
        """Tokens received since the last Delta."""
        return self._tokens_since_delta

    @property
    def deliverable(self) -> bool:
        """Whether `drain` has something for the client now."""
        if self.finish_reason is not None:
            return not self._finish_sent
        return self._tokens_since_delta >= self._call.stream_interval_tokens and bool(
            self._text or self._ids or self._logprobs
        )

    def heard(self, now_seconds: float) -> float | None:
        """Tokens came: how long after those before; None: they are the first."""
        last_seconds, self._heard_seconds = self._heard_seconds, now_seconds
        return None if last_seconds is None else now_seconds - last_seconds

    def push(self, output: Output) -> bool:
        """Takes new tokens. True: a stop string ended the candidate before the engine did."""
        if self.finish_reason is not None:
            return False
        if self._matcher is None:
            self._take(output.token_ids, output.logprobs)
            self._add_text(self._detokenize(output.token_ids))
            return False
        logprobs = output.logprobs
        for position, token_id in enumerate(output.token_ids):
            self._take([token_id], logprobs and logprobs[position : position + 1])
            text = self._detokenize([token_id])
            if self.output_tokens <= self._bypass_tokens:
                self._add_text(text)
            elif self._search(text):
                return True
        return False

    def finish(self, reason: FinishReason, stop_token_id: int | None = None) -> None:
        """Ends the candidate and releases the text held back. The first call counts."""
        if self.finish_reason is not None:
            return
        self.finish_reason = reason
        self._stop_token_id = stop_token_id
        tail = self._detokenizer.finish() if self._detokenizer is not None else ""
        if self._matcher is None:
            self._add_text(tail)
        elif not self._search(tail):
            self._add_text(self._matcher.finish())

    def drain(self) -> Delta | None:
        """Everything pending as one Delta; None when there is nothing to deliver."""
        if not self.deliverable:
            return None
        delta = Delta(
            index=self.index,
            text="".join(self._text),
            token_ids=self._ids,
            logprobs=self._logprobs,
        )
        if self.finish_reason is not None:
            delta.finish_reason = self.finish_reason
            delta.stop = self.matched_stop
            delta.stop_token_id = self._stop_token_id
            self._finish_sent = True
        self._text, self._ids, self._logprobs = [], [], []
        self._tokens_since_delta = 0
        self.pending_bytes = 0
        return delta

    def _take(self, token_ids: list[int], logprobs: list[TokenLogprob] | None) -> None:
        self.output_tokens += len(token_ids)
        self._tokens_since_delta += len(token_ids)
        if self._call.want_token_ids:
            self._ids += token_ids
            self.pending_bytes += _ID_BYTES * len(token_ids)
        if logprobs:
            self._logprobs += logprobs
            entries = sum(1 + len(logprob.top_ids) for logprob in logprobs)
            self.pending_bytes += _LOGPROB_BYTES * entries

    def _detokenize(self, token_ids: list[int]) -> str:
        if self._detokenizer is None:
            return ""
        # Only the last token can be one that ends the sequence.
        last = token_ids[-1:]
        if last and self._is_silent(last[0]):
            token_ids = token_ids[:-1]
        return self._detokenizer.push(token_ids)

    def _is_silent(self, token_id: int) -> bool:
        if token_id in self._stop_ids:
            return not self._call.include_stop
        return token_id in self._eos_ids and not self._call.keep_special_tokens

    def _search(self, text: str) -> bool:
        assert self._matcher is not None
        emit, matched = self._matcher.push(text)
        self._add_text(emit)
        if matched is None:
            return False
        self.finish_reason = FinishReason.STOP
        self.matched_stop = matched
        self._stop_token_id = None
        return True

    def _add_text(self, text: str) -> None:
        if text and not self._call.skip_text:
            self._text.append(text)
            self.pending_bytes += len(text.encode())
