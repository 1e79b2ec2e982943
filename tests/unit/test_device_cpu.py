"""A CPU as a device: its books balance, and it refuses exactly what does not fit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache.host_memory import available_memory_bytes, total_memory_bytes
from service.device.cpu import CpuDevice
from service.device.errors import DeviceOutOfMemoryError
from service.device.owner import Owner
from service.device.process_memory import peak_bytes, resident_bytes

OWN = (Owner.WEIGHTS, Owner.KV_POOL, Owner.ACTIVATIONS, Owner.GRAPHS)
MIB = 1 << 20


@dataclass
class Host:
    """What the machine has left, and what was promised of it and not written."""

    available_bytes: int = 10_000
    promised_bytes: int = 0

    def device(self, limit_bytes: int | None, context_bytes: int = 0) -> CpuDevice:
        return CpuDevice(
            limit_bytes,
            context_bytes=context_bytes,
            promised_bytes=lambda: self.promised_bytes,
            available_bytes=lambda: self.available_bytes,
            machine_bytes=lambda: 16_000,
        )


def roomy(limit_bytes: int = 1000, context_bytes: int = 0) -> CpuDevice:
    return Host().device(limit_bytes, context_bytes)


class TestBooks:
    """Who has what."""

    def test_every_owner_is_in_the_ledger_and_all_sum_to_what_is_used(self) -> None:
        device = roomy(context_bytes=100)
        device.take(Owner.WEIGHTS, 300)
        device.take(Owner.KV_POOL, 200)
        device.take(Owner.ACTIVATIONS, 50)
        figures = device.figures()
        assert (figures.total_bytes, figures.free_bytes) == (1000, 350)
        assert figures.by_owner == {
            Owner.WEIGHTS: 300,
            Owner.KV_POOL: 200,
            Owner.ACTIVATIONS: 50,
            Owner.GRAPHS: 0,
            Owner.CONTEXT: 100,
            Owner.OTHERS: 0,
        }

    def test_what_activations_give_back_stays_with_the_allocator(self) -> None:
        device = roomy()
        device.take(Owner.ACTIVATIONS, 400)
        device.give_back(Owner.ACTIVATIONS, 400)
        figures = device.figures()
        assert (figures.free_bytes, figures.reclaimable_bytes) == (600, 400)
        assert figures.by_owner[Owner.ACTIVATIONS] == 400
        assert figures.headroom_bytes == 1000
        assert device.release_cached() == 400
        assert device.figures().free_bytes == 1000
        assert device.release_cached() == 0

    def test_what_others_give_back_is_free_at_once(self) -> None:
        device = roomy()
        device.take(Owner.KV_POOL, 400)
        device.give_back(Owner.KV_POOL, 150)
        figures = device.figures()
        assert (figures.free_bytes, figures.reclaimable_bytes) == (750, 0)

    @pytest.mark.parametrize("size_bytes", [-1, 101])
    def test_nobody_gives_back_what_he_has_not(self, size_bytes: int) -> None:
        device = roomy()
        device.take(Owner.KV_POOL, 100)
        with pytest.raises(ValueError, match=f"{size_bytes} bytes of kv_pool .* 100 were taken"):
            device.give_back(Owner.KV_POOL, size_bytes)
        with pytest.raises(ValueError, match="but must be at least 0"):
            device.take(Owner.KV_POOL, -1)
        assert device.figures().by_owner[Owner.KV_POOL] == 100

    def test_a_process_that_is_larger_than_its_device_says_so(self) -> None:
        with pytest.raises(DeviceOutOfMemoryError) as caught:
            roomy(1000, context_bytes=1001)
        assert (caught.value.owner, caught.value.wanted_bytes) == (Owner.CONTEXT, 1001)


class TestAllocator:
    """What fits, what does not, and what is done before it is given up."""

    def test_a_step_within_the_cache_needs_nothing_free(self) -> None:
        device = roomy()
        device.take(Owner.ACTIVATIONS, 400)
        device.give_back(Owner.ACTIVATIONS, 400)
        device.take(Owner.KV_POOL, 600)
        device.take(Owner.ACTIVATIONS, 400)
        assert device.figures().free_bytes == 0
        assert device.figures().allocator_retries == 0

    def test_a_step_grows_the_cache_by_what_is_missing(self) -> None:
        device = roomy()
        for size_bytes in (400, 700, 500):
            device.take(Owner.ACTIVATIONS, size_bytes)
            device.give_back(Owner.ACTIVATIONS, size_bytes)
        assert device.figures().reclaimable_bytes == 700

    def test_the_pool_takes_what_the_cache_has_once_it_is_dropped(self) -> None:
        device = roomy()
        device.take(Owner.ACTIVATIONS, 400)
        device.give_back(Owner.ACTIVATIONS, 400)
        device.take(Owner.KV_POOL, 601)
        figures = device.figures()
        assert (figures.free_bytes, figures.reclaimable_bytes) == (399, 0)
        assert figures.allocator_retries == 1

    def test_a_failure_tells_all_and_claims_nothing(self) -> None:
        device = roomy(context_bytes=100)
        device.take(Owner.WEIGHTS, 500)
        with pytest.raises(DeviceOutOfMemoryError) as caught:
            device.take(Owner.ACTIVATIONS, 401)
        error = caught.value
        assert (error.owner, error.wanted_bytes) == (Owner.ACTIVATIONS, 401)
        assert (error.free_bytes, error.total_bytes) == (400, 1000)
        figures = device.figures()
        assert (figures.free_bytes, figures.allocator_retries) == (400, 1)
        device.take(Owner.ACTIVATIONS, 400)

    def test_it_tells_what_it_has_given_out_and_what_it_keeps(self) -> None:
        device = roomy(context_bytes=100)
        device.take(Owner.WEIGHTS, 300)
        device.take(Owner.GRAPHS, 20)
        device.take(Owner.KV_POOL, 200)
        device.take(Owner.ACTIVATIONS, 80)
        device.give_back(Owner.ACTIVATIONS, 50)
        figures = device.figures()
        assert (figures.allocated_bytes, figures.reserved_bytes) == (350, 400)
        assert figures.inactive_bytes == 0
        device.release_cached()
        assert device.figures().reserved_bytes == 350

    @pytest.mark.parametrize(("owner", "ooms"), [(Owner.ACTIVATIONS, 1), (Owner.KV_POOL, 0)])
    def test_a_pool_that_does_not_fit_is_no_failure_of_the_allocator(
        self, owner: Owner, ooms: int
    ) -> None:
        device = roomy()
        device.take(owner, 900)
        assert device.figures().allocator_ooms == 0
        with pytest.raises(DeviceOutOfMemoryError):
            device.take(owner, 101)
        assert device.figures().allocator_ooms == ooms


class TestHost:
    """A device is never larger than what the host can back."""

    def test_no_more_is_free_than_the_host_has(self) -> None:
        host = Host(available_bytes=300)
        device = host.device(1000)
        figures = device.figures()
        assert (figures.free_bytes, figures.host_available_bytes) == (300, 300)
        assert figures.by_owner[Owner.OTHERS] == 700
        with pytest.raises(DeviceOutOfMemoryError):
            device.take(Owner.KV_POOL, 301)

    def test_pages_that_were_promised_and_not_written_are_not_free(self) -> None:
        host = Host(available_bytes=500, promised_bytes=200)
        assert host.device(1000).figures().free_bytes == 300

    def test_what_the_cache_keeps_in_the_books_alone_is_not_free_twice(self) -> None:
        host = Host(available_bytes=500)
        device = host.device(None)
        device.take(Owner.ACTIVATIONS, 100)
        device.give_back(Owner.ACTIVATIONS, 100)
        assert device.figures().headroom_bytes == 500

    def test_a_cache_that_the_host_cannot_back_serves_no_step(self) -> None:
        """It is in the books alone: the system's OOM killer would find out."""
        host = Host(available_bytes=500)
        device = host.device(None)
        device.take(Owner.ACTIVATIONS, 400)
        device.give_back(Owner.ACTIVATIONS, 400)
        host.available_bytes, host.promised_bytes = 350, 50
        assert device.figures().headroom_bytes == 300
        with pytest.raises(DeviceOutOfMemoryError) as caught:
            device.take(Owner.ACTIVATIONS, 301)
        assert caught.value.free_bytes == 300
        device.take(Owner.ACTIVATIONS, 300)

    def test_a_step_within_the_cache_goes_by_the_newest_figures(self) -> None:
        host = Host(available_bytes=500)
        device = host.device(None)
        device.take(Owner.ACTIVATIONS, 400)
        device.give_back(Owner.ACTIVATIONS, 400)
        host.available_bytes = 100
        device.take(Owner.ACTIVATIONS, 400)
        device.give_back(Owner.ACTIVATIONS, 400)
        assert device.figures().headroom_bytes == 100
        host.available_bytes = 500
        device.take(Owner.ACTIVATIONS, 400)
        device.give_back(Owner.ACTIVATIONS, 400)
        assert device.figures().allocator_retries == 0
        host.available_bytes = 100
        device.figures()
        with pytest.raises(DeviceOutOfMemoryError):
            device.take(Owner.ACTIVATIONS, 400)

    def test_without_a_limit_the_device_is_the_machine(self) -> None:
        figures = Host().device(None, context_bytes=700).figures()
        assert (figures.total_bytes, figures.free_bytes) == (16_000, 10_000)
        assert figures.by_owner[Owner.CONTEXT] == 700
        assert figures.by_owner[Owner.OTHERS] == 5_300

    def test_the_real_machine(self) -> None:
        total_bytes, available_bytes = total_memory_bytes(), available_memory_bytes()
        assert 0 < available_bytes <= total_bytes
        figures = CpuDevice(context_bytes=resident_bytes()).figures()
        assert figures.total_bytes == total_bytes
        assert 0 < figures.free_bytes <= total_bytes - figures.by_owner[Owner.CONTEXT]
        assert sum(figures.by_owner.values()) == total_bytes - figures.free_bytes


class TestForeignProcess:
    """Another process on the same device."""

    def test_it_gets_what_is_free_and_not_what_the_allocator_keeps(self) -> None:
        device = roomy()
        device.take(Owner.ACTIVATIONS, 300)
        device.give_back(Owner.ACTIVATIONS, 300)
        assert device.set_foreign(10_000) == 700
        assert device.figures().by_owner[Owner.OTHERS] == 700
        assert device.figures().headroom_bytes == 300

    def test_it_grows_and_shrinks(self) -> None:
        device = roomy()
        device.take(Owner.WEIGHTS, 500)
        assert [device.set_foreign(size) for size in (200, 450, 600, 100, 0)] == [
            *(200, 450, 500, 100, 0)
        ]
        assert device.figures().free_bytes == 500

    def test_it_keeps_what_it_has_when_the_host_is_short(self) -> None:
        host = Host()
        device = host.device(1000)
        device.set_foreign(600)
        host.available_bytes = 100
        assert device.set_foreign(800) == 600


class Machine(RuleBasedStateMachine):
    """Anything in any order, against what the docstrings say."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.device = self.host.device(5_000, context_bytes=100)
        self.taken = dict.fromkeys(OWN, 0)
        self.cached = 0
        self.foreign = 0

    @rule(owner=st.sampled_from(OWN), size_bytes=st.integers(0, 3_000))
    def take(self, owner: Owner, size_bytes: int) -> None:
        before = self.device.figures()
        if size_bytes <= before.headroom_bytes:
            self.device.take(owner, size_bytes)
            self.taken[owner] += size_bytes
            if owner is Owner.ACTIVATIONS:
                self.cached = max(0, self.cached - size_bytes)
            elif size_bytes > before.free_bytes:
                self.cached = 0
        else:
            with pytest.raises(DeviceOutOfMemoryError):
                self.device.take(owner, size_bytes)
            self.cached = 0
            after = self.device.figures()
            assert after.headroom_bytes == before.headroom_bytes
            assert after.allocator_retries == before.allocator_retries + 1

    @rule(owner=st.sampled_from(OWN), share=st.floats(0, 1))
    def give_back(self, owner: Owner, share: float) -> None:
        size_bytes = int(share * self.taken[owner])
        self.device.give_back(owner, size_bytes)
        self.taken[owner] -= size_bytes
        self.cached += size_bytes if owner is Owner.ACTIVATIONS else 0

    @rule()
    def release_cached(self) -> None:
        headroom_bytes = self.device.figures().headroom_bytes
        assert self.device.release_cached() == self.cached
        self.cached = 0
        assert self.device.figures().headroom_bytes == headroom_bytes

    @rule(size_bytes=st.integers(0, 6_000))
    def set_foreign(self, size_bytes: int) -> None:
        free_bytes = self.device.figures().free_bytes
        got_bytes = self.device.set_foreign(size_bytes)
        assert got_bytes <= size_bytes
        if not self.is_host_short():
            assert got_bytes == min(size_bytes, self.foreign + free_bytes)
        self.foreign = got_bytes

    @rule(available_bytes=st.integers(0, 10_000), promised_bytes=st.integers(0, 2_000))
    def change_host(self, available_bytes: int, promised_bytes: int) -> None:
        self.host.available_bytes, self.host.promised_bytes = available_bytes, promised_bytes

    @precondition(lambda self: self.is_host_short())
    @rule()
    def relieve_host(self) -> None:
        self.host.available_bytes, self.host.promised_bytes = 10_000, 0

    def is_host_short(self) -> bool:
        unseen_bytes = self.host.promised_bytes + self.cached + self.foreign
        return self.host.available_bytes < unseen_bytes

    @invariant()
    def books_balance(self) -> None:
        figures = self.device.figures()
        assert figures.total_bytes == 5_000
        assert 0 <= figures.free_bytes <= self.host.available_bytes
        assert sum(figures.by_owner.values()) == figures.total_bytes - figures.free_bytes
        backed = max(0, self.host.available_bytes - self.host.promised_bytes - self.foreign)
        assert figures.reclaimable_bytes == min(self.cached, backed)
        assert figures.headroom_bytes <= backed
        for owner in OWN:
            cached = self.cached if owner is Owner.ACTIVATIONS else 0
            assert figures.by_owner[owner] == self.taken[owner] + cached
        assert figures.by_owner[Owner.CONTEXT] == 100
        assert figures.by_owner[Owner.OTHERS] >= self.foreign


TestMachine = Machine.TestCase


def test_the_peak_of_the_process_is_seen_though_nothing_stays() -> None:
    before_bytes = resident_bytes()

    def touch() -> None:
        bytearray(64 * MIB)[:: 1 << 12] = b"\x01" * (64 * 256)

    rose_bytes = peak_bytes(touch)
    assert rose_bytes is not None
    assert 60 * MIB < rose_bytes < 100 * MIB
    assert resident_bytes() < before_bytes + 30 * MIB
