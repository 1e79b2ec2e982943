"""However many tenants there are, so many series and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from metrics_page import page_of

from service.engine.messages import SamplingParams
from service.front.call import GenerationCall
from service.telemetry.catalog.tenants import NO_TENANT, OTHER_TENANTS
from service.telemetry.exporter import Exporter
from service.telemetry.request_metrics import RequestMetrics
from service.telemetry.tenants import TenantNames


def test_the_first_have_their_names_and_the_rest_are_others() -> None:
    names = TenantNames(4, ["known"])
    assert names.all() == [NO_TENANT, "known", OTHER_TENANTS]
    assert [names.of(tenant) for tenant in ("a", "b", "c", "a", "d", "", "known")] == [
        *("a", "b", OTHER_TENANTS, "a", OTHER_TENANTS, NO_TENANT, "known"),
    ]


@given(
    limit=st.integers(0, 5),
    known=st.lists(st.text(max_size=2)),
    tenants=st.lists(st.text(max_size=2)),
)
def test_names_are_bounded_and_do_not_change(
    limit: int, known: list[str], tenants: list[str]
) -> None:
    names = TenantNames(limit, known)
    first = [names.of(tenant) for tenant in tenants]
    assert [names.of(tenant) for tenant in tenants] == first
    assert len(names.all()) <= limit + 1
    assert set(first) <= set(names.all())


def call(tenant: str) -> GenerationCall:
    return GenerationCall(
        request_id="r", prompt_ids=[1, 2], sampling=SamplingParams(), tenant=tenant
    )


def test_ten_thousand_tenants_do_not_grow_the_page() -> None:
    exporter = Exporter("m")
    observer = RequestMetrics(exporter, TenantNames(20, []))
    series = []
    for number in range(10_000):
        observer.admitted(call(f"tenant-{number}"))
        if number in (100, 9_999):
            series.append(len(page_of(exporter).series))
    assert series[0] == series[1] < 650
