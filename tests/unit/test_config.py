"""Settings: sources and their order, bounds, and what the errors say."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from service.config import EngineSettings, ServeSettings
from service.config.sources import (
    SettingError,
    UnknownSettingError,
    describe,
    load_settings,
    settings_flags,
    settings_parser,
)


def parse(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    settings_parser(parser)
    return settings_flags(parser.parse_args(arguments))


def test_defaults_are_within_their_own_bounds() -> None:
    for setting in describe(ServeSettings):
        assert setting.parse(setting.default, "default") == setting.default


def test_every_number_has_a_least_and_a_largest_value() -> None:
    for setting in describe(ServeSettings):
        if setting.kind in (int, float):
            assert {setting.meta.ge, setting.meta.gt} != {None}, setting.name
            assert {setting.meta.le, setting.meta.lt} != {None}, setting.name


def test_every_setting_has_a_sentence_a_group_and_a_unique_name() -> None:
    settings = describe(ServeSettings)
    assert len({setting.name for setting in settings}) == len(settings)
    for setting in settings:
        assert setting.meta.description
        assert setting.meta.description.endswith(".")
        assert setting.group
        if setting.name.endswith("_seconds"):
            assert setting.unit == "seconds"
        if setting.name.endswith("_bytes"):
            assert setting.unit == "bytes"


def test_stronger_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.toml"
    file.write_text(
        'port = 1\nadmin_port = 2\nlog_level = "error"\n'
        "[engine]\nblock_tokens = 32\nkv_blocks = 9\n"
    )
    settings = load_settings(
        parse("--port", "3"),
        environment={"PLIMSOLL_PORT": "4", "PLIMSOLL_ADMIN_PORT": "5", "PLIMSOLL_KV_BLOCKS": "7"},
        config_file=file,
    )
    assert settings.port == 3  # flag
    assert settings.admin_port == 5  # environment
    assert settings.engine.kv_blocks == 7  # environment reaches the engine's table
    assert settings.log_level == "error"  # file
    assert settings.engine.block_tokens == 32
    assert settings.max_candidates == 16  # default


def test_environment_can_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("port = 77\n")
    assert load_settings(environment={"PLIMSOLL_CONFIG": str(file)}).port == 77


@pytest.mark.parametrize(
    ("text", "expected"),
    [("512MiB", 512 * 1024**2), ("2 GB", 2 * 10**9), ("1.5GiB", 3 * 2**29), ("2097152", 2**21)],
)
def test_byte_sizes(text: str, expected: int) -> None:
    settings = load_settings(environment={"PLIMSOLL_KV_MEMORY_BYTES": text})
    assert settings.engine.kv_memory_bytes == expected


@pytest.mark.parametrize("text", ["512Mib", "MiB", "-5MiB", "1e9", "12 parsecs", "0x10"])
def test_bad_byte_sizes(text: str) -> None:
    with pytest.raises(SettingError, match="number of bytes"):
        load_settings(environment={"PLIMSOLL_KV_MEMORY_BYTES": text})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"port": "70000"}, r"port = '70000' \(flag --port\): must be at most 65535"),
        ({"kv_memory_bytes": "129TiB"}, r"kv_memory_bytes = '129TiB' .*: must be at most 128TiB"),
        ({"port": "x"}, "must be an integer"),
        ({"port": "1.5"}, "must be an integer"),
        ({"port": True}, "must be an integer"),
        ({"block_tokens": "0"}, "must be at least 1 tokens"),
        ({"load_line": "0"}, "must be more than 0"),
        ({"max_request_bytes": "1B"}, "must be at least 1KiB$"),
        ({"load_line": "nan"}, "must be a number"),
        ({"dtype": "int3"}, "must be one of auto, bfloat16, float32"),
        ({"host": ""}, "must not be empty"),
        ({"reflection": "maybe"}, "must be true or false"),
    ],
)
def test_errors_name_field_value_source_and_limit(flags: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_settings(flags)


def test_unknown_names_are_errors_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UnknownSettingError, match="did you mean PLIMSOLL_BLOCK_TOKENS"):
        load_settings(environment={"PLIMSOLL_BLOCK_TOKEN": "16"})
    file = tmp_path / "s.toml"
    file.write_text("prot = 1\n")
    with pytest.raises(UnknownSettingError, match=r"prot \(file .*did you mean port"):
        load_settings(config_file=file)
    file.write_text("[engine]\nprot = 1\n")
    with pytest.raises(UnknownSettingError, match=r"prot \(file .*table \[engine\]"):
        load_settings(config_file=file)
    with pytest.raises(UnknownSettingError, match="whatever"):
        load_settings({"whatever": 1})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("kv_blocks = 9\n", r"kv_blocks = 9 .* in the table \[engine\]"),
        ("[engine]\nport = 1\n", "port = 1 .* above the tables"),
    ],
)
def test_a_setting_in_the_wrong_table_is_told_its_place(
    tmp_path: Path, text: str, place: str
) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=place):
        load_settings(config_file=file)


def test_variables_of_a_kubernetes_service_named_plimsoll_are_not_settings() -> None:
    settings = load_settings(
        environment={
            "PLIMSOLL_SERVICE_HOST": "10.0.0.1",
            "PLIMSOLL_SERVICE_PORT": "9000",
            "PLIMSOLL_SERVICE_PORT_GRPC": "9000",
            "PLIMSOLL_PORT": "tcp://10.0.0.1:9000",
            "PLIMSOLL_PORT_9000_TCP": "tcp://10.0.0.1:9000",
            "PLIMSOLL_PORT_9000_TCP_ADDR": "10.0.0.1",
        }
    )
    assert settings == ServeSettings()


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.toml"):
        load_settings(config_file=tmp_path / "missing.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("port = = 3")
    with pytest.raises(ValueError, match=r"bad\.toml"):
        load_settings(config_file=bad)


def test_contradictions_are_errors() -> None:
    with pytest.raises(ValueError, match="kv_blocks = 5 and kv_memory_bytes = 1048576"):
        load_settings({"kv_blocks": "5", "kv_memory_bytes": "1MiB"})
    with pytest.raises(ValueError, match=r"restart_delay_max_seconds = 1\.0 is below"):
        load_settings({"restart_delay_seconds": "2", "restart_delay_max_seconds": "1"})
    with pytest.raises(ValueError, match=r"pressure_high_share = 0\.5 is below"):
        load_settings({"pressure_high_share": "0.5"})
    with pytest.raises(ValueError, match="both 9001"):
        load_settings({"port": "9001"})
    assert load_settings({"port": "0", "admin_port": "0"}).port == 0


def test_flags_in_help_and_negation(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("--no-reflection", "--kv-memory-bytes", "1GiB") == {
        "reflection": False,
        "kv_memory_bytes": "1GiB",
    }
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    for setting in describe(ServeSettings):
        assert setting.flag in text
    assert "Life cycle:" in text


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("load_line", "(above 0, up to 1; default 0.9)"),
        ("max_request_bytes", "(bytes; 1KiB to 1GiB; default 4MiB)"),
        ("kv_memory_bytes", "(bytes; 1MiB to 128TiB)"),
        ("max_context_tokens", "(tokens; 2 to 16777216)"),
        ("keepalive_seconds", "(seconds; 1 to 7200; default 20)"),
        ("reflection", "(default true)"),
        ("served_model_name", "without .gguf."),
    ],
)
def test_help_shows_unit_range_and_default_as_they_can_be_given(name: str, facts: str) -> None:
    (setting,) = (s for s in describe(ServeSettings) if s.name == name)
    assert setting.help_text().endswith(facts)


def test_optional_settings_can_be_unset_by_a_stronger_source(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("[engine]\nthreads = 3\n")
    assert load_settings(config_file=file).engine.threads == 3
    assert load_settings({"threads": "none"}, config_file=file).engine.threads is None


def test_engine_settings_survive_the_trip_through_json() -> None:
    settings = EngineSettings(model="/m.gguf", kv_blocks=8)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=EngineSettings) == settings
