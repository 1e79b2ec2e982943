"""Fills settings Structs: flag over environment over TOML file over default.

The Structs of `service.config` are the only list of settings; flags, environment
variables, help text and error messages are derived from it.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from service.config.serve import ServeSettings

ENVIRONMENT_PREFIX = "PLIMSOLL_"
CONFIG_VARIABLE = "PLIMSOLL_CONFIG"

# Kubernetes gives the pods of a namespace these variables for a Service named "plimsoll".
_SERVICE_LINK = re.compile(r"PLIMSOLL_(SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
_SERVICE_LINK_URL = re.compile(r"(tcp|udp|sctp)://.+")

_BYTE_UNITS = {"": 1, "B": 1}
_BYTE_UNITS |= {f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)}
_BYTE_UNITS |= {f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)}
_BINARY_UNITS = [(f"{p}iB", 1024**n) for n, p in reversed(list(enumerate("KMGT", 1)))]
_METAVARS = {int: "NUMBER", float: "NUMBER", str: "TEXT"}
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NOT_SET = ("", "none")


class SettingError(ValueError):
    """A setting that cannot be used: which one, what it was, where it came from, the limit."""

    def __init__(self, name: str, value: object, source: str, limit: str) -> None:
        super().__init__(f"{name} = {value!r} ({source}): {limit}")
        self.name = name
        self.value = value
        self.source = source
        self.limit = limit


class UnknownSettingError(ValueError):
    """A name that no setting has."""

    def __init__(self, name: str, source: str, known: Iterable[str]) -> None:
        close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
        hint = f"; did you mean {close[0]}?" if close else ""
        super().__init__(f"unknown setting {name} ({source}){hint}")
        self.name = name
        self.source = source


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings Struct, with what its annotation says."""

    name: str
    kind: type  # int, float, str or bool
    choices: tuple[str, ...]
    optional: bool
    default: object
    meta: msgspec.Meta
    section: str  # table of the TOML file, "" for the top level

    @property
    def unit(self) -> str:
        return str((self.meta.extra or {}).get("unit", ""))

    @property
    def group(self) -> str:
        return str((self.meta.extra or {}).get("group", ""))

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    def parse(self, value: object, source: str) -> object:
        """The value in the type of the field, within its bounds.

        Text is read as the field's type, byte counts also as "512MiB" or "2GB".
        Raises SettingError.
        """
        parsed = self._read(value, source)
        if parsed is None:
            return None
        for broken in self._broken_bounds(parsed):
            raise SettingError(self.name, value, source, broken)
        return parsed

    def _read(self, value: object, source: str) -> object:
        if value is None and self.optional:
            return None
        parsed = value
        if isinstance(value, str) and self.kind is not str:
            text = value.strip()
            if self.optional and text.lower() in _NOT_SET:
                return None
            try:
                parsed = self._read_text(text)
            except (ValueError, KeyError):
                raise SettingError(self.name, value, source, self._type_words()) from None
        elif self.kind is float and type(value) is int:
            parsed = float(value)
        if type(parsed) is not self.kind:
            raise SettingError(self.name, value, source, self._type_words())
        return parsed

    def _read_text(self, text: str) -> object:
        if self.kind is bool:
            return _BOOLS[text.lower()]
        if self.unit == "bytes":
            return parse_bytes(text)
        return self.kind(text)

    def _type_words(self) -> str:
        if self.unit == "bytes":
            return 'must be a number of bytes, as 1048576 or "1MiB"'
        words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
        return f"must be {words[self.kind]}"

    def _broken_bounds(self, value: typing.Any) -> Iterator[str]:
        meta = self.meta
        if self.choices and value not in self.choices:
            yield f"must be one of {', '.join(self.choices)}"
        if isinstance(value, float) and value != value:
            yield "must be a number"
        if meta.ge is not None and value < meta.ge:
            yield f"must be at least {self._amount(meta.ge)}"
        if meta.gt is not None and value <= meta.gt:
            yield f"must be more than {self._amount(meta.gt)}"
        if meta.le is not None and value > meta.le:
            yield f"must be at most {self._amount(meta.le)}"
        if meta.min_length is not None and len(value) < meta.min_length:
            yield "must not be empty"

    def _amount(self, number: float) -> str:
        shown = self._shown(number)
        return shown if self.unit == "bytes" else f"{shown} {self.unit}".strip()

    def _shown(self, value: object) -> str:
        """A value as it can be given: true, 4MiB, 0.9."""
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, int | float):
            return str(value)
        if self.unit == "bytes":
            return _shown_bytes(int(value))
        return f"{value:.10g}"

    def help_text(self) -> str:
        """Sentence, bounds and default, for `--help`."""
        facts = []
        if self.unit:
            facts.append(self.unit)
        facts += self._range_words()
        if self.default is not None:
            facts.append(f"default {self._shown(self.default)}")
        # argparse formats with %.
        return f"{self.meta.description} ({'; '.join(facts)})".replace("%", "%%").replace(" ()", "")

    def _range_words(self) -> list[str]:
        meta = self.meta
        top = None if meta.le is None else self._shown(meta.le)
        if meta.gt is not None:
            low = f"above {self._shown(meta.gt)}"
            return [low if top is None else f"{low}, up to {top}"]
        if meta.ge is not None:
            low = self._shown(meta.ge)
            return [f"at least {low}" if top is None else f"{low} to {top}"]
        return []


def _shown_bytes(number: int) -> str:
    for unit, size in _BINARY_UNITS:
        if number and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def parse_bytes(text: str) -> int:
    """A number of bytes, as 1048576, "512MiB" or "2GB"; ValueError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    if match is None or match[2] not in _BYTE_UNITS:
        raise ValueError(text)
    return int(float(match[1]) * _BYTE_UNITS[match[2]])


def describe(struct: type[msgspec.Struct], section: str = "") -> list[Setting]:
    """All settings of a Struct, nested Structs included, in order of declaration."""
    hints = typing.get_type_hints(struct, include_extras=True)
    settings: list[Setting] = []
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            settings += describe(hint, section=field.name)
            continue
        optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
        if optional:
            hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
        plain, meta = typing.get_args(hint)
        choices = typing.get_args(plain) if typing.get_origin(plain) is typing.Literal else ()
        kind = str if choices else plain
        settings.append(Setting(field.name, kind, choices, optional, field.default, meta, section))
    return settings


_FLAG_PREFIX = "setting:"


def settings_parser(
    parser: argparse.ArgumentParser, struct: type[msgspec.Struct] = ServeSettings
) -> None:
    """Adds one flag per setting, in groups, and `--config`. Read back with `settings_flags`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help=f"TOML file with settings; {CONFIG_VARIABLE} names it too",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in describe(struct):
        group = groups.get(setting.group)
        if group is None:
            group = groups[setting.group] = parser.add_argument_group(setting.group)
        destination = _FLAG_PREFIX + setting.name
        if setting.kind is bool:
            group.add_argument(
                setting.flag,
                dest=destination,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=setting.help_text(),
            )
        else:
            metavar = "{" + ",".join(setting.choices) + "}" if setting.choices else None
            group.add_argument(
                setting.flag,
                dest=destination,
                metavar=metavar or setting.unit.upper() or _METAVARS[setting.kind],
                default=argparse.SUPPRESS,
                help=setting.help_text(),
            )


def settings_flags(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings that were given as flags, still unparsed."""
    return {
        name.removeprefix(_FLAG_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_FLAG_PREFIX)
    }


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    config_file: str | Path | None = None,
) -> ServeSettings:
    """The settings in force.

    `flags` maps field names to values as given; `config_file` is the TOML file, or else
    PLIMSOLL_CONFIG of the environment names one. Raises SettingError, UnknownSettingError,
    and ValueError for a file that cannot be read or fields that contradict each other.
    """
    environment = environment or {}
    settings = {setting.name: setting for setting in describe(ServeSettings)}
    given: dict[str, tuple[object, str]] = {}  # strongest source last
    path = config_file or environment.get(CONFIG_VARIABLE)
    if path:
        given |= _from_file(Path(path), settings)
    given |= _from_environment(environment, settings)
    for name, value in (flags or {}).items():
        if name not in settings:
            raise UnknownSettingError(name, "flag", settings)
        given[name] = (value, f"flag {settings[name].flag}")

    tables: dict[str, dict[str, object]] = {"": {}}
    for name, (value, source) in given.items():
        setting = settings[name]
        tables.setdefault(setting.section, {})[name] = setting.parse(value, source)
    top = tables.pop("")
    try:
        return msgspec.convert(top | tables, ServeSettings)
    except msgspec.ValidationError as error:  # fields that contradict each other
        raise ValueError(str(error).partition(" - at `")[0]) from error


def _from_file(path: Path, settings: Mapping[str, Setting]) -> dict[str, tuple[object, str]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"settings file {path}: {error}") from error
    sections = {setting.section for setting in settings.values()} - {""}
    found: dict[str, tuple[object, str]] = {}
    for key, value in document.items():
        table = {key: value}
        section = ""
        if key in sections and isinstance(value, dict):
            table, section = value, key
        for name, item in table.items():
            source = f"file {path}"
            known = [s.name for s in settings.values() if s.section == section]
            if name not in known and name in settings:
                home = settings[name].section
                place = f"in the table [{home}]" if home else "above the tables"
                raise SettingError(name, item, source, f"belongs {place}")
            if name not in known:
                where = f"{source}, table [{section}]" if section else source
                raise UnknownSettingError(name, where, [*settings, *sections])
            found[name] = (item, source)
    return found


def _from_environment(
    environment: Mapping[str, str], settings: Mapping[str, Setting]
) -> dict[str, tuple[object, str]]:
    variables = {setting.variable: setting.name for setting in settings.values()}
    found: dict[str, tuple[object, str]] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if _SERVICE_LINK.fullmatch(variable) or _SERVICE_LINK_URL.fullmatch(value):
            continue
        if variable not in variables:
            raise UnknownSettingError(variable, "environment", variables)
        found[variables[variable]] = (value, f"environment {variable}")
    return found
