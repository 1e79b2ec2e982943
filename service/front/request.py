"""A live request: its candidates, and the one reader that takes its events."""

from __future__ import annotations

import asyncio
import copy
import time

from service.engine.figures import Incident
from service.engine.messages import (
    Finished,
    FinishReason,
    Output,
    Preempted,
    Prefilled,
    Readmitted,
    TokenLogprob,
)
from service.engine.messages import Started as SequenceStarted
from service.front.accounting import Account
from service.front.call import GenerationCall
from service.front.candidate import Candidate
from service.front.events import Ended, Event, Progress, RequestError, Started
from service.front.observer import RequestObserver
from service.tokenizer.incremental import TokenDecoder
from service.tokenizer.stops import StopMatcher


class LiveRequest:
    """Merges what the engine produces into as few events as its reader can take.

    The engine side pushes (`started`, `output`, `finished`, `fail`), then calls `wake` once
    for the whole step; the reader pulls with `next_event`. Nothing here runs on a timer.
    """

    def __init__(
        self,
        call: GenerationCall,
        sequence_ids: range,
        tokenizer: TokenDecoder,
        eos_ids: tuple[int, ...],
        *,
        arrival_seconds: float,
        context_bound: bool,
        observer: RequestObserver | None = None,
    ) -> None:
        """`context_bound`: not the client but the context decides the largest output."""
        matcher = StopMatcher(call.stop, call.include_stop) if call.stop else None
        self.call = call
        self.account = Account(arrival_seconds, len(call.prompt_ids))
        self.candidates = [
            # A copy shares the automaton, which is what is expensive to make.
            Candidate(index, sequence_id, call, tokenizer, eos_ids, copy.copy(matcher))
            for index, sequence_id in enumerate(sequence_ids)
        ]
        self.error: RequestError | None = None
        self.forecast_seconds = 0.0  # from its admission to its end; 0: nobody knew
        self.scheduled = False  # at least one candidate was in a batch
        self.timer: asyncio.TimerHandle | None = None
        self._by_sequence = {candidate.sequence_id: candidate for candidate in self.candidates}
        # Candidates that the engine may still say something about.
        self._unsettled = set(sequence_ids)
        self._context_bound = context_bound
        self._observer = observer or RequestObserver()
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._started_sent = False
        self._ended_sent = False
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self._unread_since_seconds: float | None = None

    # --- facts ---

    @property
    def open_sequences(self) -> list[int]:
        """Sequences that an engine has to work on."""
        return [c.sequence_id for c in self.candidates if c.finish_reason is None]

    @property
    def over(self) -> bool:
        """Nothing more comes from the engine; the reader may still have to take the end."""
        return self._closed or self.error is not None or not self._unsettled

    @property
    def end_taken(self) -> bool:
        """The reader has got `Ended`."""
        return self._ended_sent

    @property
    def closed(self) -> bool:
        """The reader has left."""
        return self._closed

    @property
    def unread(self) -> bool:
        """Output waits for the reader."""
        return self._unread_since_seconds is not None

    @property
    def pending_bytes(self) -> int:
        """Size of what the reader has not taken."""
        return sum(candidate.pending_bytes for candidate in self.candidates)

    @property
    def unsent_tokens(self) -> int:
        """Tokens that the reader has not taken."""
        return sum(candidate.unsent_tokens for candidate in self.candidates)

    @property
    def output_tokens(self) -> int:
        """Tokens received, up to the stop of each candidate."""
        return sum(candidate.output_tokens for candidate in self.candidates)

    @property
    def sent_tokens(self) -> int:
        """Tokens that the reader has taken."""
        return self.output_tokens - self.unsent_tokens

    # --- the engine's side ---

    def started(self, started: SequenceStarted) -> None:
        """A candidate entered the batch of the present engine."""
        if not self.scheduled:
            self.scheduled = True
            self.account.first_scheduled(started.scheduled_seconds, started.cached_tokens)
            queue_seconds = started.scheduled_seconds - self.account.arrival_seconds
            self._observer.scheduled(self.call, queue_seconds)

    def resumed(self, sequence_id: int, known_tokens: int, cached_tokens: int) -> None:
        """A candidate goes on in another engine, which computes again what it does not have."""
        self.account.resumed(known_tokens, cached_tokens)
        self._observer.resumed(self.call, self._by_sequence[sequence_id].index)

    def prefilled(self, chunk: Prefilled) -> None:
        """A chunk of a candidate was computed."""
        self._observer.prefilled(self.call, self._by_sequence[chunk.sequence_id].index, chunk)

    def moved(self, move: Preempted | Readmitted) -> None:
        """A candidate lost blocks, or came back."""
        index = self._by_sequence[move.sequence_id].index
        if isinstance(move, Preempted):
            self._observer.preempted(self.call, index, move)
        else:
            self._observer.readmitted(self.call, index, move)

    def ran_out_of_memory(self, incident: Incident) -> None:
        """A step that a candidate was in found no device memory."""
        self._observer.ran_out_of_memory(self.call, incident)

    def interrupted(self, sequence_id: int) -> None:
        """The engine that computed a candidate died."""
        self._observer.interrupted(self.call, self._by_sequence[sequence_id].index)

    def resubmitted(self, sequence_id: int) -> None:
        """A candidate was sent to a new engine."""
        self._observer.resubmitted(self.call, self._by_sequence[sequence_id].index)

    def output(self, output: Output, now_seconds: float) -> bool:
        """Takes new tokens. True: the candidate is over and the engine should stop it."""
        candidate = self._by_sequence[output.sequence_id]
        if candidate.finish_reason is not None:
            return False
        if self.account.received(now_seconds):
            self._observer.first_token(
                self.call,
                now_seconds - self.account.arrival_seconds,
                self.account.prefill_seconds,
            )
        if output.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = output.prompt_logprobs
        before_tokens = candidate.output_tokens
        is_over = candidate.push(output)
        gap_seconds = candidate.heard(now_seconds)
        self._observer.received(self.call, candidate.output_tokens - before_tokens, gap_seconds)
        return is_over

    def finished(self, finished: Finished) -> None:
        """The engine is done with a candidate."""
        reason = finished.reason
        if reason is FinishReason.MAX_TOKENS and self._context_bound:
            reason = FinishReason.CONTEXT_LENGTH
        self.account.finished(finished)
        self._by_sequence[finished.sequence_id].finish(reason, finished.stop_token_id)
        self._unsettled.discard(finished.sequence_id)

    def finish_open(self, reason: FinishReason) -> list[int]:
        """Ends all candidates that go on, with the text so far; answers their sequences."""
        ended = self.open_sequences
        for sequence_id in ended:
            self._by_sequence[sequence_id].finish(reason)
        return ended

    def settle(self, sequence_ids: list[int]) -> None:
        """No engine will say more about these sequences."""
        self._unsettled.difference_update(sequence_ids)

    def settle_finished(self) -> None:
        """The engine is lost: what it had left to say about ended candidates is lost too."""
        self._unsettled.intersection_update(self.open_sequences)

    def fail(self, error: RequestError) -> None:
        """Ends the request without `Ended`; the first error counts."""
        if self.error is None:
            self.error = error

    # --- the reader's side ---

    def close(self) -> None:
        """The reader wants no more events."""
        self._closed = True

    async def next_event(self) -> Event | None:
        """The next event, merged as far as possible; None after `Ended` or `close`.

        Raises the RequestError that ended the request.
        """
        while True:
            if self._ended_sent or self._closed:
                return None
            event = self._take_event()
            if event is not None:
                return event
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def wake(self, now_seconds: float) -> bool:
        """Tells the reader that there is something. True: it waits from now on for a reader
        that is busy elsewhere."""
        if self._unread_since_seconds is not None or not self._has_event():
            return False
        if self._reader is not None:
            if not self._reader.done():
                self._reader.set_result(None)
            return False
        self._unread_since_seconds = now_seconds
        return True

    def _has_event(self) -> bool:
        if self._ended_sent:
            return False
        if self.error is not None or self._closed:
            return True
        if not self._started_sent:
            return self._can_start
        return self.over or any(candidate.deliverable for candidate in self.candidates)

    @property
    def _can_start(self) -> bool:
        if any(candidate.finish_reason is not None for candidate in self.candidates):
            return True
        if self.call.sampling.prompt_logprobs is not None and self._prompt_logprobs is None:
            return False  # they come with the first token
        return self.scheduled

    def _take_event(self) -> Event | None:
        now_seconds = time.monotonic()
        if self._unread_since_seconds is not None:
            self.account.blocked_on_client_seconds += now_seconds - self._unread_since_seconds
            self._unread_since_seconds = None
        if self.error is not None:
            raise self.error
        if not self._started_sent:
            if not self._can_start:
                return None
            self._started_sent = True
            return Started(
                prompt_tokens=self.account.prompt_tokens,
                cached_prompt_tokens=self.account.cached_prompt_tokens,
                seed=self.call.sampling.seed,
                effective_priority=self.call.priority,
                prompt_logprobs=self._prompt_logprobs,
            )
        deltas = [delta for c in self.candidates if (delta := c.drain()) is not None]
        if deltas:
            self.account.sent(now_seconds)
            return Progress(deltas)
        if self.over:
            self._ended_sent = True
            return Ended(self.account.usage(self.output_tokens), self.account.timings(now_seconds))
        return None
