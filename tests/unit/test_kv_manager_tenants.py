"""CacheManager: what tenants are guaranteed, may borrow and must give back."""

from __future__ import annotations

import pytest
from kv_cores import NewManager
from kv_manager_driver import BLUE, RED, begin, request, run, serve, tokens

from kvcache import CacheManager, Fits, NeverFits, NotNow, Shortage, TenantShare
from kvcache.errors import InvalidArgumentError

GREEN = b"green"


def serve_many(
    manager: CacheManager, firsts: range, namespace: bytes, tenant: str, blocks: int = 1
) -> None:
    for first in firsts:
        ids = range(first * 1000, first * 1000 + 4 * blocks)
        serve(manager, request(1, ids, namespace, tenant=tenant))


def test_a_batch_sweep_does_not_evict_what_is_below_a_floor(new_manager: NewManager) -> None:
    manager = new_manager(17, 4, tenants={"chat": TenantShare(floor_blocks=4)})
    serve(manager, request(1, range(24), RED, tenant="chat"))
    serve_many(manager, range(1, 100), BLUE, "batch")
    assert manager.lookup(RED, tokens(range(25))) == 16, "the floor stays, the rest is lent"
    assert manager.tenant_stats("chat").evicted_for_others == 2
    assert manager.tenant_stats("batch").evicted_for_others == 0


def test_what_a_floor_lacks_is_given_to_nobody_else(new_manager: NewManager) -> None:
    manager = new_manager(9, 4, tenants={"chat": TenantShare(floor_blocks=3)})
    run(manager, request(1, range(20), BLUE))
    assert manager.admit(request(2, range(4), BLUE)) == NotNow(1, (1,), Shortage.FLOORS)
    assert manager.admit(request(2, range(100, 124), BLUE)) == NeverFits(6, 8, 20)
    assert [manager.append(1, token) for token in range(1)] == [1]
    assert begin(manager, request(3, range(12), RED, tenant="chat")) == 0
    assert manager.admit(request(4, range(4), RED, tenant="chat")) == NotNow(
        1, (1, 3), Shortage.POOL
    )
    manager.release(1)
    assert isinstance(manager.admit(request(2, range(50, 70), BLUE)), Fits)


def test_a_quota_bounds_what_a_tenant_has_in_use(new_manager: NewManager) -> None:
    manager = new_manager(17, 4, tenants={"batch": TenantShare(quota_blocks=4)})
    assert manager.admit(request(1, range(20), tenant="batch")) == NeverFits(5, 16, 16)
    run(manager, request(1, range(12), tenant="batch"))
    assert manager.admit(request(2, range(50, 58), tenant="batch")) == NotNow(
        1, (1,), Shortage.QUOTA
    )
    assert [manager.append(1, token) for token in range(5)] == [0, 0, 0, 0, 1]
    assert isinstance(manager.admit(request(3, range(50, 58), BLUE)), Fits)


def test_a_tenant_at_its_quota_evicts_its_own_blocks(new_manager: NewManager) -> None:
    shares = {"batch": TenantShare(quota_blocks=4)}
    manager = new_manager(17, 4, tenants=shares)
    serve(manager, request(1, range(16), BLUE))
    serve_many(manager, range(1, 20), RED, "batch")
    assert manager.tenant_stats("batch").cached == 4
    assert manager.stats().evicted_blocks == 15
    assert manager.tenant_stats("batch").evicted_for_others == 0
    assert manager.tenant_stats("").cached == 4
    manager.set_share("batch", TenantShare(quota_blocks=2))
    serve(manager, request(1, range(4), RED, tenant="batch"))
    assert manager.tenant_stats("batch").cached == 2
    assert manager.tenant_stats("batch").evicted_for_others == 0
    assert manager.stats().free == 10


def test_headroom_is_not_taken_from_a_quota(new_manager: NewManager) -> None:
    manager = new_manager(17, 4, tenants={"batch": TenantShare(quota_blocks=4)})
    run(manager, request(1, range(16), BLUE))
    wanted = request(2, range(16), tenant="batch", headroom_blocks=4)
    assert isinstance(manager.admit(wanted), Fits), "else it would wait as long as others run"
    run(manager, request(3, range(100, 124), BLUE))
    answer = manager.admit(wanted)
    assert answer == NotNow(2, (3, 1), Shortage.POOL)


def test_the_need_of_a_tenant_costs_its_own_expectations_first(new_manager: NewManager) -> None:
    shares = {"a": TenantShare(), "b": TenantShare()}
    manager = new_manager(9, 4, tenants=shares)
    serve(manager, request(1, range(16), RED, tenant="a"))
    serve(manager, request(2, range(16), BLUE, tenant="b"))
    manager.expect(request(8, range(17), RED, tenant="a"))
    manager.expect(request(9, range(17), BLUE, tenant="b"))
    begin(manager, request(3, range(100, 104), RED, tenant="a"))
    assert manager.lookup(BLUE, tokens(range(17))) == 16
    assert (manager.unexpect(8), manager.unexpect(9)) == (False, True)


def test_expectations_below_a_floor_are_not_let_go_for_others(new_manager: NewManager) -> None:
    shares = {"a": TenantShare(floor_blocks=4), "b": TenantShare()}
    manager = new_manager(9, 4, tenants=shares)
    serve(manager, request(1, range(16), RED, tenant="a"))
    serve(manager, request(2, range(16), BLUE, tenant="b"))
    manager.expect(request(9, range(17), BLUE, tenant="b"))
    manager.expect(request(8, range(17), RED, tenant="a"))
    begin(manager, request(3, range(100, 104), GREEN))
    assert (manager.unexpect(8), manager.unexpect(9)) == (True, False)


def test_a_namespace_has_one_tenant_at_a_time(new_manager: NewManager) -> None:
    shares = {"a": TenantShare(), "b": TenantShare()}
    manager = new_manager(9, 4, tenants=shares)
    serve(manager, request(1, range(8), RED, tenant="a"))
    before = manager.stats()
    foreign = request(2, range(8), RED, tenant="b")
    for operation in (
        lambda: manager.admit(foreign),
        lambda: manager.expect(foreign),
        lambda: manager.begin_load(RED, tokens(range(16)), 10, "b"),
        lambda: manager.begin_load(RED, tokens(range(16)), 10),
    ):
        with pytest.raises(InvalidArgumentError, match=r"tenant is '.*, but must be the one"):
            operation()
    assert manager.stats() == before
    manager.flush(RED)
    serve(manager, foreign)


def test_the_figures_of_tenants_are_kept_apart(new_manager: NewManager) -> None:
    shares = {"a": TenantShare(floor_blocks=1, quota_blocks=6), "b": TenantShare()}
    manager = new_manager(17, 4, tenants=shares)
    serve(manager, request(1, range(8), RED, tenant="a"))
    run(manager, request(2, range(9), RED, tenant="a"))
    run(manager, request(3, range(12), BLUE, tenant="c"))
    figures = manager.tenant_stats("a")
    assert (figures.in_use, figures.cached) == (3, 0)
    assert (figures.floor_blocks, figures.quota_blocks) == (1, 6)
    assert (figures.lookup_tokens, figures.hit_tokens) == (17, 8)
    assert manager.tenant_stats("b").in_use == 0
    assert manager.tenant_stats("c") == manager.tenant_stats("")
    assert manager.tenant_stats("c").in_use == 3


def test_a_share_can_be_changed_while_requests_run(new_manager: NewManager) -> None:
    manager = new_manager(9, 4, tenants={"a": TenantShare(quota_blocks=2)})
    assert manager.admit(request(1, range(12), tenant="a")) == NeverFits(3, 8, 8)
    manager.set_share("a", TenantShare(floor_blocks=2, quota_blocks=3))
    run(manager, request(1, range(12), tenant="a"))
    manager.set_share("a", TenantShare(quota_blocks=1))
    assert manager.append(1, 7) == 1
    assert manager.block_table(1).size == 3, "nothing is taken away from a sequence"
    with pytest.raises(InvalidArgumentError, match="tenant is 'b'"):
        manager.set_share("b", TenantShare())
    with pytest.raises(InvalidArgumentError, match="floor_blocks is 9"):
        manager.set_share("a", TenantShare(floor_blocks=9))
    assert manager.tenant_stats("a").quota_blocks == 1


def test_shares_that_cannot_be_are_refused(new_manager: NewManager) -> None:
    with pytest.raises(InvalidArgumentError, match="floor_blocks is -1"):
        TenantShare(floor_blocks=-1)
    with pytest.raises(InvalidArgumentError, match="quota_blocks is 2"):
        TenantShare(floor_blocks=3, quota_blocks=2)
    with pytest.raises(InvalidArgumentError, match="quota_blocks is 0"):
        TenantShare(quota_blocks=0)
    five = TenantShare(floor_blocks=5)
    with pytest.raises(InvalidArgumentError, match="floor_blocks is 10, but must be at most 9"):
        new_manager(10, 4, tenants={"a": five, "b": five})
    with pytest.raises(InvalidArgumentError, match="tenants is 32, but must be at most 31"):
        new_manager(10, 4, tenants={str(number): TenantShare() for number in range(32)})
    new_manager(11, 4, tenants={"a": five, "b": five})


def test_a_fork_is_charged_to_the_tenant_of_its_parent(new_manager: NewManager) -> None:
    manager = new_manager(17, 4, tenants={"a": TenantShare(quota_blocks=4)})
    run(manager, request(1, range(10), tenant="a"))
    manager.fork(1, 2)
    assert manager.tenant_stats("a").in_use == 4
    assert [manager.append(2, token) for token in range(3)] == [0, 0, 1]


def test_what_forks_and_loads_take_from_others_is_counted(new_manager: NewManager) -> None:
    manager = new_manager(9, 4, tenants={"a": TenantShare(), "b": TenantShare()})
    run(manager, request(1, range(5), BLUE, tenant="b"))
    serve(manager, request(2, range(24), RED, tenant="a"))
    manager.fork(1, 3)
    assert manager.tenant_stats("a").evicted_for_others == 1
    assert manager.begin_load(BLUE, tokens(range(100, 108)), 10, "b") is not None
    assert manager.tenant_stats("a").evicted_for_others == 3
    assert manager.tenant_stats("b").evicted_for_others == 0
