"""How `read` and `tail` print a record: its value, as JSON, or by a format like '%k %v\\n'.

Bytes are printed as they are stored, as text without control characters (on a terminal), or as
base64; times that no calendar has are numbers.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from string import hexdigits
from typing import Literal

from ledger.cli.output import text_or_base64
from ledger.core.times import time_text
from ledger.shown_text import escaped_json
from stream.core.entry.records import NULL, Record

Shown = Literal["value", "json", "base64"]
RecordText = Callable[[Record, str], bytes]
"""Returns the text of a record of a stream, with its end of line."""

_Encode = Callable[[bytes], bytes]


def json_of(record: Record, stream: str | None = None) -> dict[str, object]:
    """Returns all columns of a record. Bytes are text if they are UTF-8, else {"base64": ...}."""
    return {
        **({} if stream is None else {"stream": stream}),
        "position": str(record.position),
        "sequence": record.sequence,
        "append_time": time_text(record.append_time_ms),
        "event_time": None if record.event_time_ms is None else time_text(record.event_time_ms),
        "key": None if record.key is None else text_or_base64(record.key),
        "value": None if record.is_tombstone else text_or_base64(record.value),
        **({"headers": _header_pairs(record)} if record.headers else {}),
    }


def _header_pairs(record: Record) -> list[list[object]]:
    return [
        [name, None if content is NULL else text_or_base64(content)]
        for name, content in record.headers
    ]


def json_line(record: Record, stream: str | None) -> bytes:
    """Returns `json_of` as a line."""
    text = json.dumps(json_of(record, stream), ensure_ascii=False)
    return escaped_json(text).encode() + b"\n"


def record_text(shown: Shown, form: str | None, stored: _Encode = bytes) -> RecordText:
    """Returns the function that prints records; `stored` is that for what a record holds. Raises
    InvalidArgument for a wrong format."""
    encode: _Encode = base64.b64encode if shown == "base64" else stored
    if form is None:
        return lambda record, stream: encode(record.value) + b"\n"
    return _formatted(form, encode, stored)


def _length(content: bytes | None) -> int:
    return -1 if content is None or content is NULL else len(content)


def _event_time(record: Record) -> str | int | None:
    return None if record.event_time_ms is None else time_text(record.event_time_ms)


_BYTES: dict[str, tuple[str, Callable[[Record, _Encode, _Encode], bytes]]] = {
    "v": ("value", lambda record, encode, stored: encode(record.value)),
    "k": ("key, empty if there is none", lambda record, encode, stored: encode(record.key or b"")),
    "h": (
        "headers, NAME=VALUE,...",
        lambda record, encode, stored: b",".join(
            stored(name.encode()) + b"=" + encode(content) for name, content in record.headers
        ),
    ),
}
_FACTS: dict[str, tuple[str, Callable[[Record, str], object]]] = {
    "p": ("position", lambda record, stream: record.position),
    "s": ("sequence number", lambda record, stream: record.sequence),
    "t": ("append time", lambda record, stream: time_text(record.append_time_ms)),
    "T": ("append time in ms since 1970", lambda record, stream: record.append_time_ms),
    "e": ("event time, empty if there is none", lambda record, stream: _event_time(record)),
    "E": ("event time in ms since 1970", lambda record, stream: record.event_time_ms),
    "V": ("bytes of the value, -1 if it is null", lambda record, stream: _length(record.value)),
    "K": ("bytes of the key, -1 if there is none", lambda record, stream: _length(record.key)),
    "n": ("NAMESPACE/STREAM, or the partition", lambda record, stream: stream),
    "%": ("a percent sign", lambda record, stream: "%"),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

FORMAT_FIELDS = {
    f"%{letter}": meaning for letter, (meaning, _) in (*_BYTES.items(), *_FACTS.items())
}
"""Each field of a format, and what it prints."""


def _formatted(form: str, encode: _Encode, stored: _Encode) -> RecordText:
    """Returns the function of a format; nothing is added to it, and no end of line either."""
    pieces: list[RecordText] = []
    rest = iter(os.fsencode(form).decode("utf-8", "surrogateescape"))
    for character in rest:
        if character == "%":
            pieces.append(_field(next(rest, ""), encode, stored))
        elif character == "\\":
            pieces.append(_constant(_escaped(rest)))
        else:
            pieces.append(_constant(character.encode("utf-8", "surrogateescape")))
    return lambda record, stream: b"".join(piece(record, stream) for piece in pieces)


def _constant(text: bytes) -> RecordText:
    return lambda record, stream: text


def _field(letter: str, encode: _Encode, stored: _Encode) -> RecordText:
    from ledger.errors import InvalidArgument

    if letter in _BYTES:
        content = _BYTES[letter][1]
        return lambda record, stream: content(record, encode, stored)
    if letter not in _FACTS:
        raise InvalidArgument(f"--format: there is no %{letter}; use {', '.join(FORMAT_FIELDS)}")
    fact = _FACTS[letter][1]

    def text(record: Record, stream: str) -> bytes:
        found = fact(record, stream)
        return b"" if found is None else stored(str(found).encode())

    return text


def _escaped(rest: Iterator[str]) -> bytes:
    """Returns the byte of an escape; `rest` is what follows the backslash."""
    from ledger.errors import InvalidArgument

    letter = next(rest, "")
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    digits = "".join(islice(rest, 2)) if letter == "x" else ""
    if len(digits) == 2 and all(digit in hexdigits for digit in digits):
        return bytes.fromhex(digits)
    raise InvalidArgument(
        f"--format: there is no \\{letter}{digits}; use \\n, \\t, \\r, \\0, \\x1f or \\\\"
    )
