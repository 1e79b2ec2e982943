"""CacheManager: what it counts."""

from __future__ import annotations

from kv_cores import NewManager
from kv_manager_driver import BLUE, begin, request, serve

from kvcache import AdmissionRequest, MissReason

# --- why a lookup missed ---


def test_every_miss_is_counted_with_its_reason(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)

    def reason_of(wanted: AdmissionRequest) -> MissReason | None:
        before = manager.stats().misses
        serve(manager, wanted)
        after = manager.stats().misses
        changed = [reason for reason in MissReason if after[reason] != before[reason]]
        assert len(changed) <= 1
        return changed[0] if changed else None

    assert reason_of(request(1, range(4))) is MissReason.TOO_SHORT
    assert reason_of(request(1, range(12))) is MissReason.DIVERGED
    assert reason_of(request(1, range(12))) is None
    assert reason_of(request(1, range(12), use_cache=False)) is MissReason.DISABLED
    assert reason_of(request(1, range(12), BLUE)) is MissReason.NAMESPACE
    assert reason_of(request(1, [*range(4), *range(50, 58)])) is MissReason.DIVERGED
    serve(manager, request(1, range(200, 232)))  # evicts everything
    assert reason_of(request(1, range(12))) is MissReason.EVICTED
    assert manager.stats().regretted_tokens == 8


# --- figures ---


def test_figures_are_right_at_any_time_without_a_step(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    begin(manager, request(1, range(10)))
    stats = manager.stats()
    assert (stats.total, stats.free, stats.held, stats.cached) == (8, 5, 3, 0)
    assert stats.reserved == 3
    manager.commit(1, 5)
    assert manager.stats().reserved == 1
    manager.release(1)
    stats = manager.stats()
    assert (stats.free, stats.held, stats.cached, stats.reserved) == (7, 0, 1, 0)
    assert stats.live_sequences == 0
