"""Threads between the engine and a store that may be slow, fail, or never answer."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from kvcache.errors import InvalidArgumentError
from kvcache.rates import RateMeter
from kvcache.tiers.breaker import Breaker
from kvcache.tiers.keys import BlockKey
from kvcache.tiers.tier import Tier, TierError, TierStats

_logger = logging.getLogger("kvcache.tiers")

_RETRY_SECONDS = 0.1  # between looks at a store that has yet to forget something


@dataclass(slots=True, eq=False)
class Job:
    """Something asked of a tier; `answer` is set once, at the very end, by another thread.

    What it reads goes into buffers of its own. Whoever does not want to wait any longer drops
    the job: when its answer comes, nobody is there to look.
    """

    keys: Sequence[BlockKey]
    into: Sequence[memoryview] | None = None  # None: only look how many there are
    answer: int | None = None  # leading blocks; 0 if the tier failed


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Figures of a tier together with those of the threads in front of it."""

    tier: TierStats
    queued_bytes: int
    dropped_blocks: int  # not put: the queue was full, or the tier could not or would not
    failures: int  # of the store; each is a miss or a lost put
    is_failing: bool
    pending_drops: int  # namespaces that the store has yet to forget; they are not read
    read_bytes_per_second: float | None
    write_bytes_per_second: float | None


class TierWorker:
    """A tier whose reads and puts happen in threads, and whose failures are misses.

    One thread puts, in order, from a queue of at most `queue_bytes`; what does not fit is
    dropped and counted, so a slow store costs hits and never time. `readers` threads look up
    and read. A namespace that is to be dropped is not read or put from that moment on, and is
    open again when the store has forgotten it; until then the drop is tried again and again.

    The threads are daemons: a store that hangs does not keep the process from ending.
    """

    def __init__(
        self,
        tier: Tier,
        *,
        queue_bytes: int,
        readers: int = 2,
        breaker: Breaker | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if queue_bytes < 0:
            raise InvalidArgumentError("queue_bytes", queue_bytes, "at least 0")
        if readers < 1:
            raise InvalidArgumentError("readers", readers, "at least 1")
        self.tier = tier
        self._queue_bytes = queue_bytes
        self._clock = clock
        self._breaker = breaker or Breaker(tier.name, clock)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards all that follows
        self._puts: deque[tuple[BlockKey, bytes]] = deque()
        self._drops: deque[bytes | None] = deque()  # None: everything
        self._queued_bytes = 0
        self._putting_bytes = 0  # of the block that is being put
        self._is_busy = False  # with a put or a drop
        self._dropped_blocks = self._failures = 0
        self._is_closed = False
        self._reads, self._writes = RateMeter(), RateMeter()
        self._threads = [
            threading.Thread(target=self._run_puts, name=f"{tier.name}-put", daemon=True)
        ] + [
            threading.Thread(target=self._run_jobs, name=f"{tier.name}-read", daemon=True)
            for _ in range(readers)
        ]
        self._readers = readers
        for thread in self._threads:
            thread.start()

    # --- for the engine: nothing here waits for the store ----------------------

    def may_have(self, namespace: bytes) -> bool:
        """Whether it makes sense to look: the store works and has no drop to catch up on."""
        with self._changed:
            is_dropping = None in self._drops or namespace in self._drops
        return not is_dropping and self._breaker.would_allow()

    def leading_hits(self, keys: Sequence[BlockKey]) -> int:
        """Asks the tier at once, in this thread: for a tier that knows without asking anybody."""
        if not keys or not self.may_have(keys[0].namespace):
            return 0
        # A tier that looks into its own memory is none the better for that.
        return self._attempt(partial(self.tier.leading_hits, keys), is_proof=False) or 0

    def submit(self, job: Job) -> None:
        """Has a lookup or a read done by the next free thread."""
        self._jobs.put(job)

    def offer(self, key: BlockKey, payload: memoryview, wait_seconds: float = 0.0) -> bool:
        """Has a copy of the block put some time; False, and counted, if that will not be.

        It will not be when the store fails or is to forget the namespace, nor when the queue
        has no room within `wait_seconds`.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_refused(key) or self._has_room(len(payload)), wait_seconds
            )
            if self._is_refused(key) or not self._has_room(len(payload)):
                self._dropped_blocks += 1
                return False
            self._puts.append((key, bytes(payload)))
            self._queued_bytes += len(payload)
            self._changed.notify_all()
        return True

    def _is_refused(self, key: BlockKey) -> bool:
        is_dropping = None in self._drops or key.namespace in self._drops
        return self._is_closed or is_dropping or not self._breaker.would_allow()

    def _has_room(self, size_bytes: int) -> bool:
        return self._queued_bytes + self._putting_bytes + size_bytes <= self._queue_bytes

    def gave_up(self) -> None:
        """Somebody waited in vain for an answer: the store counts as failing."""
        self._failed("no answer in time")

    def drop(self, namespace: bytes | None) -> None:
        """Has a namespace (None: all) forgotten; from now on nothing of it is found."""
        with self._changed:
            kept = [put for put in self._puts if namespace not in (None, put[0].namespace)]
            self._queued_bytes = sum(len(payload) for _, payload in kept)
            self._puts = deque(kept)
            if namespace not in self._drops:
                self._drops.append(namespace)
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until everything queued is done; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._puts and not self._drops and not self._is_busy, seconds
            )

    def stats(self) -> WorkerStats:
        """Figures of this moment."""
        with self._changed:
            return WorkerStats(
                tier=self.tier.stats(),
                queued_bytes=self._queued_bytes + self._putting_bytes,
                dropped_blocks=self._dropped_blocks,
                failures=self._failures,
                is_failing=self._breaker.is_open,
                pending_drops=len(self._drops),
                read_bytes_per_second=self._reads.per_second,
                write_bytes_per_second=self._writes.per_second,
            )

    def close(self, seconds: float = 1.0) -> None:
        """Ends the threads and the tier; what is queued to be put is lost.

        What is to be forgotten is waited for, as the next process might find it; what could not
        be in time is told in the log. Threads that do not end in time are left behind with the
        tier open: a store that hangs cannot be closed under the hands of the thread that waits
        for it.
        """
        give_up_at = time.monotonic() + seconds
        with self._changed:
            self._puts.clear()
            self._queued_bytes = 0
            self._changed.wait_for(lambda: not self._drops, seconds)
            if self._drops:
                _logger.warning(
                    "%s tier: closed with %d namespaces that it has yet to forget",
                    self.tier.name,
                    len(self._drops),
                )
            self._is_closed = True
            self._changed.notify_all()
        for _ in range(self._readers):
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self.tier.close()

    # --- threads -------------------------------------------------------------

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            answer = None
            if job.keys and self.may_have(job.keys[0].namespace) and self._breaker.allows():
                answer = self._attempt(partial(self._do, job))
            job.answer = answer or 0

    def _do(self, job: Job) -> int:
        if job.into is None:
            return self.tier.leading_hits(job.keys)
        started = self._clock()
        count = self.tier.read(job.keys, job.into)
        with self._changed:
            size_bytes = sum(len(buffer) for buffer in job.into[:count])
            self._reads.add(size_bytes, self._clock() - started)
        return count

    def _run_puts(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_closed or self._puts or self._drops)
                if self._is_closed:
                    return
                self._is_busy = True
                drops = list(self._drops)
                put = None if drops else self._puts.popleft()
                if put is not None:
                    self._putting_bytes = len(put[1])
                    self._queued_bytes -= self._putting_bytes
            if put is not None:
                self._put(*put)
            else:
                self._drop(drops[0])

    def _put(self, key: BlockKey, payload: bytes) -> None:
        started = self._clock()
        is_put = self._breaker.allows() and self._attempt(partial(self.tier.put, key, payload))
        with self._changed:
            self._putting_bytes = 0
            if is_put:
                self._writes.add(len(payload), self._clock() - started)
            else:
                self._dropped_blocks += 1

    def _drop(self, namespace: bytes | None) -> None:
        is_done = self._breaker.allows() and self._attempt(partial(self._forget, namespace))
        with self._changed:
            if is_done:
                self._drops.remove(namespace)
            else:
                self._changed.wait_for(lambda: self._is_closed, _RETRY_SECONDS)

    def _forget(self, namespace: bytes | None) -> bool:
        if namespace is None:
            self.tier.clear()
        else:
            self.tier.drop_namespace(namespace)
        return True

    def _attempt(self, action: Callable[[], int], *, is_proof: bool = True) -> int | None:
        """The action's answer, or None if the store failed; an answer may prove that it works."""
        try:
            answer = action()
        except TierError as error:
            reason = error.reason
        except Exception as error:
            _logger.exception("%s tier: raised what a tier must not", self.tier.name)
            reason = repr(error)
        else:
            if is_proof:
                self._breaker.succeeded()
            return answer
        self._failed(reason)
        return None

    def _failed(self, reason: str) -> None:
        with self._changed:
            self._failures += 1
        self._breaker.failed(reason)
