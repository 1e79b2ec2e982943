"""The settings of tenants and cache tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcache.tenants import MAX_TENANTS
from service.config import EngineSettings
from service.config.sources import load_settings
from service.config.tenants import TenantPercent, parse_tenant_shares


def test_shares_are_read_by_name() -> None:
    shares = parse_tenant_shares(" interactive=30-100, batch=0-12.5,a=b=1-2 ")
    assert shares == {
        "interactive": TenantPercent(30, 100),
        "batch": TenantPercent(0, 12.5),
        "a=b": TenantPercent(1, 2),
    }
    assert parse_tenant_shares("") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch", "'batch' must be NAME=FLOOR-QUOTA"),
        ("batch=5", "'batch=5' must be NAME=FLOOR-QUOTA"),
        ("=0-5", "'=0-5' must be NAME=FLOOR-QUOTA"),
        ("batch=a-b", "must be NAME=FLOOR-QUOTA"),
        ("batch=20-10", "must have 0 <= FLOOR <= QUOTA <= 100"),
        ("batch=0-101", "must have 0 <= FLOOR <= QUOTA <= 100"),
        ("batch=0-0", "a QUOTA above 0"),
        ("batch=nan-50", "must have 0 <= FLOOR <= QUOTA <= 100"),
        ("a=1-2,a=1-2", "a comes twice"),
        ("a=60-100,b=41-100", "the floors add up to 101 %"),
        (",".join(f"t{i}=0-1" for i in range(32)), "32 tenants, at most 31"),
    ],
)
def test_what_is_wrong_with_a_share_is_told(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="tenant_shares: ") as caught:
        parse_tenant_shares(text)
    assert message in str(caught.value)


def test_shares_can_be_told_by_flag_variable_and_file(tmp_path: Path) -> None:
    text = "interactive=30-100"
    file = tmp_path / "plimsoll.toml"
    file.write_text(f'[engine]\ntenant_shares = "{text}"\n')
    told = [
        load_settings({"tenant_shares": text}),
        load_settings(environment={"PLIMSOLL_TENANT_SHARES": text}),
        load_settings(config_file=file),
    ]
    assert [settings.engine.tenant_shares for settings in told] == [text] * 3


def test_a_wrong_share_is_refused_with_the_settings() -> None:
    with pytest.raises(ValueError, match="tenant_shares: 'batch=9' must be"):
        load_settings({"tenant_shares": "batch=9"})


@pytest.mark.parametrize("name", ["disk_cache_folder", "remote_cache_url"])
def test_tiers_below_the_host_need_the_host_tier(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is set: .* host_cache_bytes must") as caught:
        load_settings({name: "redis://:secret@host"})
    assert "secret" not in str(caught.value)
    assert load_settings({name: "here", "host_cache_bytes": "64MiB"}).engine.host_cache_bytes


def test_tiers_are_off_by_default() -> None:
    settings = EngineSettings()
    assert settings.host_cache_bytes == 0
    assert settings.disk_cache_folder is None
    assert settings.remote_cache_url is None


def test_as_many_tenants_are_taken_as_the_cache_manager_tells_apart() -> None:
    """The settings have the number for themselves: a command line should not load numpy."""
    names = [f"tenant-{number}" for number in range(MAX_TENANTS + 1)]
    parse_tenant_shares(",".join(f"{name}=0-1" for name in names[1:]))
    with pytest.raises(ValueError, match=f"at most {MAX_TENANTS}"):
        parse_tenant_shares(",".join(f"{name}=0-1" for name in names))
