"""The records of an input: one per line, the whole input as one, or JSON as `read --json` prints.

An input that is no record is refused with the number of its line; the lines before it are records.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ledger.cli.lines import Input
from stream.core.entry.format import RECORD_BYTES_MAX

if TYPE_CHECKING:
    from ledger.errors import InvalidArgument

InputFormat = Literal["lines", "json", "raw"]
Headers = tuple[tuple[str, bytes], ...]

_JSON_LINE_BYTES_MAX = 8 * RECORD_BYTES_MAX
"""JSON escapes a byte as up to six characters."""
_GIVEN = ("value", "key", "event_time", "headers")
_IGNORED = ("stream", "position", "sequence", "append_time")
"""Fields that `read --json` prints and an append decides."""
_EXAMPLE = '{"key": "user-7", "value": "text"}'


class NewRecord(NamedTuple):
    """A record to be appended."""

    value: bytes
    key: bytes | None = None
    event_time_ms: int | None = None
    headers: Headers | None = None


RecordParts = tuple[bytes, bytes | None, int | None, Headers | None]
"""The fields of a NewRecord, named or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTemplate:
    """What an append gives to every line: a key or the separator behind it, headers, event time."""

    key: bytes | None = None
    key_separator: bytes | None = None
    event_time_ms: int | None = None
    headers: Headers | None = None

    def record(self, line: bytes) -> NewRecord:
        """Returns the record of a line. A line without the separator has no key."""
        key, value = self.key, line
        if self.key_separator is not None:
            before, separator, behind = line.partition(self.key_separator)
            key, value = (before, behind) if separator else (None, line)
        return NewRecord(value, key, self.event_time_ms, self.headers)


@dataclass(frozen=True, slots=True)
class RecordInput:
    """An open input and how its lines become records."""

    source: Input
    format: InputFormat = "lines"
    template: RecordTemplate = RecordTemplate()

    def batches(self) -> AsyncGenerator[list[bytes], None]:
        """Returns the lines, those of one read together; a raw input is one line."""
        from ledger.cli.lines import line_batches

        if self.format == "raw":
            return _whole(self.source)
        is_json = self.format == "json"
        return line_batches(self.source, _JSON_LINE_BYTES_MAX if is_json else RECORD_BYTES_MAX)

    @property
    def parse(self) -> Callable[[bytes], RecordParts | None]:
        """A function from a line to its record; None for a blank line between JSON objects."""
        if self.format == "json":
            return parse_json_record
        template = self.template
        if template.key_separator is not None:
            return template.record
        # The usual case is hot: a plain tuple costs half of a named one.
        more = (template.key, template.event_time_ms, template.headers)
        return lambda line: (line, *more)

    def located(self, number: int, error: Exception) -> InvalidArgument:
        """Returns the error of the line with this number, counted from 1."""
        from ledger.errors import InvalidArgument

        return InvalidArgument(str(error) if self.format == "raw" else f"line {number}: {error}")


async def _whole(source: Input) -> AsyncGenerator[list[bytes], None]:
    from ledger.errors import InvalidArgument

    chunks: list[bytes] = []
    nbytes = 0
    while chunk := await source.read():
        chunks.append(chunk)
        nbytes += len(chunk)
        if nbytes > RECORD_BYTES_MAX:
            raise InvalidArgument(
                f"the input is longer than {RECORD_BYTES_MAX} bytes, the most that one record may "
                f"have"
            )
    yield [b"".join(chunks)]


def parse_json_record(line: bytes) -> NewRecord | None:
    """Parses one JSON object as `read --json` prints it; None if the line is blank.

    Raises InvalidArgument.
    """
    from ledger.errors import InvalidArgument

    if not line.strip():
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"this is not JSON ({error}): write {_EXAMPLE}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"a record is a JSON object: write {_EXAMPLE}")
    unknown = found.keys() - {*_GIVEN, *_IGNORED}
    if unknown:
        raise InvalidArgument(
            f"unknown field {min(unknown)!r}: a record has {', '.join(_GIVEN)}; "
            f"{', '.join(_IGNORED)} are ignored"
        )
    if "value" not in found:
        raise InvalidArgument(f"the field 'value' is missing: write {_EXAMPLE}")
    key, headers = found.get("key"), found.get("headers")
    return NewRecord(
        _bytes_of("value", found["value"]),
        None if key is None else _bytes_of("key", key),
        _event_time_ms(found.get("event_time")),
        None if headers is None else _headers(headers),
    )


def _bytes_of(what: str, found: object) -> bytes:
    from ledger.errors import InvalidArgument

    try:
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, dict) and found.keys() == {"base64"}:
            return base64.b64decode(found["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, TypeError, ValueError) as error:
        raise InvalidArgument(f"{what}: {error}") from None
    shown = json.dumps(found)[:40]
    raise InvalidArgument(f'{what} {shown}: write a text, or {{"base64": "..."}} for other bytes')


def _event_time_ms(found: object) -> int | None:
    from ledger.core.times import parse_time_ms
    from ledger.errors import InvalidArgument

    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    try:
        return parse_time_ms(found)  # type: ignore[arg-type]  # anything else is a TypeError
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"event_time {json.dumps(found)[:40]}: write 2026-01-31T12:00:00Z, or milliseconds "
            f"since 1970"
        ) from None


def _headers(found: object) -> Headers:
    from ledger.errors import InvalidArgument

    pairs = list(found.items()) if isinstance(found, dict) else found
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in pairs
    ):
        raise InvalidArgument('headers: write [["name", "value"], ...]')
    return tuple((_name(name), _bytes_of(f"header {name!r}", value)) for name, value in pairs)


def _name(name: str) -> str:
    from ledger.errors import InvalidArgument

    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"header name {name!r} is not UTF-8") from None
    return name


def parse_header(text: str) -> tuple[str, bytes]:
    """Parses NAME=VALUE of the command line: the value may be any bytes. Raises InvalidArgument."""
    from ledger.errors import InvalidArgument

    name, equals, value = os.fsencode(text).partition(b"=")
    if not equals or not name:
        raise InvalidArgument(f"--header {text!r}: write NAME=VALUE")
    try:
        return name.decode(), value
    except UnicodeDecodeError:
        raise InvalidArgument(f"--header {text!r}: the name is not UTF-8") from None
