"""Arguments of the command line that refer to streams: NS/STREAM and where to start.

Wrong words are InvalidArgument, saying what would be right.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ledger.cli.output import usage

if TYPE_CHECKING:
    from stream.core.position import Start


class StreamName(NamedTuple):
    namespace: str
    stream: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.stream}"


@usage()
def parse_stream(text: str) -> StreamName:
    """Parses "demo/clicks" to namespace and stream."""
    from ledger.errors import InvalidArgument
    from stream.core.names import check_name

    namespace, slash, stream = text.partition("/")
    if not slash:
        raise InvalidArgument(f"stream {text!r}: write NAMESPACE/STREAM, like demo/{text}")
    return StreamName(check_name(namespace, "namespace"), check_name(stream))


class StreamNames(NamedTuple):
    """Names and patterns of streams of one namespace."""

    namespace: str
    streams: tuple[str, ...]


@usage()
def parse_streams(words: Sequence[str]) -> StreamNames:
    """Parses "demo/clicks", "demo/views-*" to a namespace, and names and patterns in it."""
    from ledger.errors import InvalidArgument
    from stream.core.names import check_name
    from stream.core.stream_patterns import StreamPatterns

    names = [word.partition("/") for word in words]
    for word, (_, slash, stream) in zip(words, names, strict=True):
        if not slash or not stream:
            raise InvalidArgument(f"stream {word!r}: write NAMESPACE/STREAM, like demo/clicks")
    namespaces = sorted({namespace for namespace, _, _ in names})
    if len(namespaces) != 1:
        raise InvalidArgument(
            f"streams of {len(namespaces)} namespaces ({', '.join(namespaces)}): they are read "
            f"together only within one"
        )
    streams = tuple(stream for _, _, stream in names)
    StreamPatterns(streams)
    return StreamNames(check_name(namespaces[0], "namespace"), streams)


@usage()
def parse_from(text: str, option: str = "--from") -> Start:
    """Parses earliest, latest, position, seq:N, end:N, time:TIME, event-time:TIME, cursor:NAME, or
    a time of appending (see `parse_time`) alone."""
    from ledger.errors import InvalidArgument
    from stream.core.names import check_name
    from stream.core.position import (
        FromCursor,
        FromEnd,
        FromEventTime,
        FromSequence,
        FromTime,
        parse_start,
    )

    kind, colon, rest = text.partition(":")
    if colon and kind in ("seq", "end"):
        if not (rest.isascii() and rest.isdigit()):
            raise InvalidArgument(f"{option} {text!r}: after {kind}: comes a number, 0 or more")
        return FromSequence(int(rest)) if kind == "seq" else FromEnd(int(rest))
    if colon and kind == "time":
        return FromTime(parse_time(rest, f"{option} {kind}:{rest}"))
    if colon and kind == "event-time":
        return FromEventTime(parse_time(rest, f"{option} {kind}:{rest}"))
    if colon and kind == "cursor":
        return FromCursor(check_name(rest, "cursor"))
    try:
        return parse_start(text)
    except InvalidArgument:
        pass
    try:
        if _NUMBER.fullmatch(text):
            raise ValueError(text)  # not a date without dashes
        return FromTime(parse_time(text, option))
    except ValueError:  # InvalidArgument, too
        raise InvalidArgument(
            f"{option} {text!r}: use earliest, latest, a position like 1:20:0, seq:N, end:N, "
            f"1h (ago), time:2026-01-31T12:00:00Z (when appended), "
            f"event-time:2026-01-31T12:00:00Z, or cursor:NAME"
        ) from None


def parse_time(text: str, option: str) -> int:
    """Parses 2026-01-31T12:00:00Z, now, 1h or -1h (an hour ago) or +1h (from now), to milliseconds
    since 1970. Raises InvalidArgument, which begins with `option`."""
    from ledger.core.times import parse_time_ms
    from ledger.errors import InvalidArgument
    from ledger.units import parse_duration_ms

    word = text.strip()
    if word == "now":
        return _now_ms()
    if word[-1:].isalpha():
        sign = 1 if word.startswith("+") else -1
        try:
            return _now_ms() + sign * parse_duration_ms(word.removeprefix("-").removeprefix("+"))
        except InvalidArgument:
            pass
    try:
        return parse_time_ms(word)
    except ValueError:
        raise InvalidArgument(
            f"{option}: not a time; write it like 2026-01-31T12:00:00Z, or 1h for an hour ago"
        ) from None


def parse_event_time(text: str) -> int:
    """Parses what `parse_time` does, and milliseconds since 1970."""
    from ledger.errors import InvalidArgument

    try:
        milliseconds = int(text) if _NUMBER.fullmatch(text) else parse_time(text, "")
    except InvalidArgument:
        raise InvalidArgument(
            f"--event-time {text!r}: not a time; write it like 2026-01-31T12:00:00Z, as "
            f"milliseconds since 1970, or 1h for an hour ago"
        ) from None
    if not -(1 << 63) <= milliseconds < 1 << 63:
        raise InvalidArgument(f"--event-time {text!r} does not fit 64 bits (ms since 1970)")
    return milliseconds


_NUMBER = re.compile(r"-?\d{1,30}", re.ASCII)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
