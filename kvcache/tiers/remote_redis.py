"""A Redis or Valkey server as a tier that several replicas share.

Values are entries (see `kvcache.tiers.entry`), so what another program or another version put
under a key is found out. The name of a value holds the fingerprint and the namespace:

    PREFIX:FINGERPRINT:GENERATION:NAMESPACE:GENERATION:KEY      an entry, with a time to live
    PREFIX:FINGERPRINT:generation                               of the fingerprint
    PREFIX:FINGERPRINT:NAMESPACE:generation                     of the namespace

A generation is a random name. To forget a namespace is to give it a new one, in O(1) and for
all replicas at once: what was put under the old one, or is still on its way, cannot be named
any more and ends with its time to live. Being random, a generation that the server lost is
never taken up again. Every read asks for the generations in the same command as for the
values, so that no replica trusts what it remembers of them.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from kvcache.errors import InvalidArgumentError
from kvcache.tiers.entry import BadEntryError, Buffer, EntryFault, encode_head, verify_whole
from kvcache.tiers.keys import BlockKey, namespace_digest, require_fingerprint
from kvcache.tiers.tier import TierError, TierStats

if TYPE_CHECKING:
    import redis

_Generations = tuple[bytes, bytes]  # of the fingerprint, of the namespace

_MOST_KNOWN = 65_536  # namespaces whose generations are remembered
_READ_BYTES = 16 * 2**20  # of values asked for in one command


class RedisTier:
    """Blocks of one fingerprint on a server, each for `ttl_seconds` after it was put.

    How much the server keeps is its own setting (`maxmemory` with an LRU policy). The client
    never retries: a failed call is a TierError after at most `timeout_seconds`, and whoever
    calls decides when to try again. Connections are made when first needed. Raises TierError
    for a `url` that is none, and if the package `redis` is missing (the extra `redis` brings it).
    """

    name = "redis"

    def __init__(
        self,
        url: str,
        fingerprint: bytes,
        *,
        ttl_seconds: int,
        timeout_seconds: float = 1.0,
        prefix: str = "plimsoll",
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if ttl_seconds < 1:
            raise InvalidArgumentError("ttl_seconds", ttl_seconds, "at least 1")
        if not timeout_seconds > 0:
            raise InvalidArgumentError("timeout_seconds", timeout_seconds, "above 0")
        self._fingerprint = require_fingerprint(fingerprint)
        try:
            import redis
        except ImportError as error:
            reason = "needs the Python package redis: install plimsoll[redis]"
            raise TierError(self.name, reason) from error
        try:
            self._client: redis.Redis = redis.Redis.from_url(
                url,
                socket_timeout=timeout_seconds,
                socket_connect_timeout=timeout_seconds,
            )
        except ValueError as error:  # says what is wrong without the password in the URL
            raise TierError(self.name, str(error)) from error
        self._failure: type[Exception] = redis.RedisError
        self._root = f"{prefix}:{fingerprint.hex()}".encode()
        self._ttl_seconds = ttl_seconds
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._known: dict[bytes, _Generations] = {}  # by namespace, as last seen
        self._read_blocks = self._written_blocks = 0
        self._faults: Counter[EntryFault] = Counter()

    # --- reading -------------------------------------------------------------

    def leading_hits(self, keys: Sequence[BlockKey]) -> int:
        """How many of the first keys the server has now; one round trip."""
        if not keys:
            return 0
        with self._calls():
            known = self._generations(keys[0].namespace)
            with self._client.pipeline(transaction=False) as pipe:
                pipe.mget(self._generation_names(keys[0].namespace))
                for key in keys:
                    pipe.exists(self._name(known, key))
                current, *found = pipe.execute()
        if not self._confirms(keys[0].namespace, known, current):
            return 0
        return next((place for place, hit in enumerate(found) if not hit), len(keys))

    def read(self, keys: Sequence[BlockKey], into: Sequence[memoryview]) -> int:
        """Reads leading blocks, each verified; a value that is wrong is deleted."""
        count = 0
        while count < len(keys):
            batch = keys[count : count + max(1, _READ_BYTES // max(1, len(into[count])))]
            got = self._read_batch(batch, into[count : count + len(batch)])
            count += got
            if got < len(batch):
                break
        with self._lock:
            self._read_blocks += count
        return count

    def _read_batch(self, keys: Sequence[BlockKey], into: Sequence[memoryview]) -> int:
        namespace = keys[0].namespace
        with self._calls():
            known = self._generations(namespace)
            names = [self._name(known, key) for key in keys]
            answer = cast(
                "list[bytes | None]",
                self._client.mget([*self._generation_names(namespace), *names]),
            )
            current, values = answer[:2], answer[2:]
            if not self._confirms(namespace, known, current):
                return 0
            for place, (key, value) in enumerate(zip(keys, values, strict=True)):
                if value is None:
                    return place
                try:
                    target = into[place]
                    target[:] = verify_whole(self._fingerprint, key, value, len(target))
                except BadEntryError as error:
                    self._client.unlink(names[place])
                    with self._lock:
                        self._faults[error.fault] += 1
                    return place
        return len(keys)

    # --- writing -------------------------------------------------------------

    def put(self, key: BlockKey, payload: Buffer) -> bool:
        """Stores one block; what is there already lives on for the whole time again."""
        with self._calls():
            known = self._generations(key.namespace)
            name = self._name(known, key)
            with self._client.pipeline(transaction=False) as pipe:
                for generation in self._generation_names(key.namespace):
                    pipe.expire(generation, 2 * self._ttl_seconds)  # outlives every entry
                pipe.expire(name, self._ttl_seconds)
                is_there = pipe.execute()[-1]
            if not is_there:
                entry = encode_head(self._fingerprint, key, payload) + bytes(payload)
                self._client.set(name, entry, ex=self._ttl_seconds)
                with self._lock:
                    self._written_blocks += 1
        return True

    def drop_namespace(self, namespace: bytes) -> None:
        """Forgets the blocks of one namespace, for all replicas."""
        self._renew(self._generation_names(namespace)[1])

    def clear(self) -> None:
        """Forgets all blocks of this fingerprint, for all replicas."""
        self._renew(self._root + b":generation")

    def _renew(self, generation: bytes) -> None:
        with self._calls():
            self._client.set(generation, self._new_generation(), ex=2 * self._ttl_seconds)
        with self._lock:
            self._known.clear()

    # --- the rest ------------------------------------------------------------

    def stats(self) -> TierStats:
        """Figures of this client; what the server holds only the server knows."""
        with self._lock:
            return TierStats(
                entries=None,
                used_bytes=None,
                capacity_bytes=None,
                read_blocks=self._read_blocks,
                written_blocks=self._written_blocks,
                evicted_blocks=0,
                faults=dict(self._faults),
            )

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _name(self, generations: _Generations, key: BlockKey) -> bytes:
        whole, own = generations
        namespace = namespace_digest(key.namespace).hex().encode()
        return b":".join((self._root, whole, namespace, own, key.digest.hex().encode()))

    def _generation_names(self, namespace: bytes) -> tuple[bytes, bytes]:
        own = namespace_digest(namespace).hex().encode()
        return self._root + b":generation", self._root + b":" + own + b":generation"

    def _generations(self, namespace: bytes) -> _Generations:
        """Those remembered, or those of the server, which is given new ones where it has none."""
        with self._lock:
            known = self._known.get(namespace)
        if known is not None:
            return known
        names = self._generation_names(namespace)
        with self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.set(name, self._new_generation(), nx=True, ex=2 * self._ttl_seconds)
            pipe.mget(names)
            current = pipe.execute()[-1]
        if None in current:  # evicted between two commands: the server has no room for us
            raise TierError(self.name, "the server does not keep what it is given")
        with self._lock:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()  # asked for again as needed
            self._known[namespace] = known = cast(_Generations, tuple(current))
        return known

    def _confirms(
        self, namespace: bytes, known: _Generations, current: Sequence[bytes | None]
    ) -> bool:
        """Whether the generations are still those of the server; if not, forgets them."""
        if tuple(current) == known:
            return True
        with self._lock:
            self._known.pop(namespace, None)
        return False

    def _new_generation(self) -> bytes:
        return self._random_bytes(8).hex().encode()

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Turns the errors of the client into TierError."""
        try:
            yield
        except self._failure as error:
            raise TierError(self.name, str(error)) from error
