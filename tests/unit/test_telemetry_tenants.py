"""However many tenants there are, so many series and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.telemetry.catalog.tenants import NO_TENANT, OTHER_TENANTS
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
