"""Typed settings of a process: defaults < TOML file < `LEDGERSTREAM_*` environment < flags.

For any frozen dataclass whose fields are the settings. Nothing is ignored: an unknown key or a
wrong type is an error that names the source, the key and the cure. It needs msgspec, which the
client's core does not, so only the main programs call it.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import tomllib
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ledger.errors import InvalidArgument
from ledger.units import parse_duration_ms, parse_size_bytes

T = TypeVar("T")

ENVIRONMENT_PREFIX = "LEDGERSTREAM_"
_BYTE_UNITS = ("bytes", "bytes/s")
_NUMBER = re.compile(r"[-+]?[\d.]+|[-+]?(?:nan|inf)", re.ASCII)


def setting(default: Any, *, unit: str, apache: str, reason: str) -> Any:
    """Returns a dataclass field with its documentation. `apache` is the same setting of Apache
    BookKeeper, or "" if it has none; `reason` is one sentence."""
    metadata = {"unit": unit, "apache": apache, "reason": reason}
    return dataclasses.field(default=default, metadata=metadata)


def load_settings(
    settings_type: type[T],
    *,
    file: Path | None = None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    known_elsewhere: Collection[str] = (),
) -> T:
    """Returns one `settings_type`, merged from all sources.

    Sizes and durations are numbers of their unit, or text like "64MB" and "7d". Flags whose value
    is None were not given. In the environment the items of a list are separated
    by commas; names in `known_elsewhere` (without prefix, in lower case) belong to other programs.
    Raises InvalidArgument.
    """
    hints = typing.get_type_hints(settings_type)
    units = {field.name: field.metadata["unit"] for field in _fields(settings_type)}
    apache = {
        name: field.name
        for field in _fields(settings_type)
        for name in field.metadata["apache"].split(", ")
    }
    values: dict[str, object] = {}
    for source, given, is_text in (
        (str(file), read_toml(file) if file is not None else {}, False),
        ("environment", _of_environment(environment, known_elsewhere), True),
        ("flags", {name: value for name, value in flags.items() if value is not None}, False),
    ):
        for name, value in given.items():
            if name not in units:
                raise _unknown(source, name, units, apache)
            plain = _without_unit(source, name, value, units[name])
            values[name] = _converted(source, name, plain, hints[name], is_text)
    missing = [
        field.name
        for field in _fields(settings_type)
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidArgument(
            f"missing settings: {', '.join(missing)}. Cure: give them in"
            f" {'a TOML file' if file is None else file}, or in the environment"
            f" ({', '.join(ENVIRONMENT_PREFIX + name.upper() for name in missing)})"
        )
    return settings_type(**values)


def read_toml(file: Path) -> dict[str, Any]:
    """Returns the tables of a TOML file. Raises InvalidArgument."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not TOML: {error}") from error


def settings_table(settings_type: type[object]) -> str:
    """Returns the settings as the Markdown table that the documentation contains."""
    lines = [
        "| Setting | Default | Unit | In Apache BookKeeper | Why |",
        "|---|---|---|---|---|",
    ]
    for field in _fields(settings_type):
        about = field.metadata
        default = "required"
        if field.default is not dataclasses.MISSING:
            default = _shown(field.default, is_bytes=about["unit"] in _BYTE_UNITS)
        apache = f"`{about['apache']}`" if about["apache"] else "-"
        lines.append(
            f"| `{field.name}` | {default} | {about['unit'] or '-'} | {apache} |"
            f" {about['reason']} |"
        )
    return "\n".join(lines) + "\n"


def _fields(settings_type: type[object]) -> tuple[dataclasses.Field[Any], ...]:
    """Returns the fields that the class itself declares, then those of its sections, which are
    its bases."""
    assert dataclasses.is_dataclass(settings_type), f"{settings_type} is no dataclass"
    found = {field.name: field for field in dataclasses.fields(settings_type)}
    declared = (name for one in settings_type.__mro__ for name in inspect.get_annotations(one))
    return tuple(found.pop(name) for name in declared if name in found)


def _of_environment(
    environment: Mapping[str, str], known_elsewhere: Collection[str]
) -> dict[str, object]:
    given = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    return {name: value for name, value in given.items() if name not in known_elsewhere}


def _converted(source: str, name: str, value: object, hint: Any, is_text: bool) -> object:
    import msgspec

    if is_text and typing.get_origin(hint) is tuple:
        value = [part.strip() for part in str(value).split(",") if part.strip()]
    try:
        return msgspec.convert(value, type=hint, strict=not is_text)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{source}: {name} = {value!r} is wrong: {error}") from None


def _without_unit(source: str, name: str, value: object, unit: str) -> object:
    """Returns a number for text like "64MB" or "7d", and any other value as it is. Raises
    InvalidArgument."""
    parse = parse_size_bytes if unit in _BYTE_UNITS else parse_duration_ms if unit == "ms" else None
    if parse is None or not isinstance(value, str) or _NUMBER.fullmatch(value.strip()):
        return value
    try:
        return parse(value.removesuffix("/s") if unit == "bytes/s" else value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}: {name} = {value!r} is wrong: {error}") from None


def _unknown(
    source: str, name: str, names: Collection[str], apache: Mapping[str, str]
) -> InvalidArgument:
    """`apache` has the names of settings by those of Apache BookKeeper."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    cure = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
    same = next((ours for theirs, ours in apache.items() if theirs.lower() == name.lower()), None)
    if name and same is not None:
        cure = f"Apache BookKeeper's {name} is {same} here, see docs/configuration.md for its unit"
    shown = f"{ENVIRONMENT_PREFIX}{name.upper()}" if source == "environment" else name
    return InvalidArgument(f"{source}: unknown setting {shown}: {cure}")


def _shown(default: object, *, is_bytes: bool) -> str:
    if isinstance(default, bool):
        return "true" if default else "false"
    if isinstance(default, str):
        return f'"{default}"'
    if is_bytes and isinstance(default, int) and default >= 1024:
        for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if default % (1 << shift) == 0:
                return f"{default} ({default >> shift} {unit})"
    return str(default)
