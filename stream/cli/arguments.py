"""Arguments of the command line that refer to streams: NS/STREAM and where to start.

Wrong words are InvalidArgument, saying what would be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledger.core.times import parse_time_ms
from ledger.errors import InvalidArgument
from stream.core.names import check_name
from stream.core.position import (
    FromCursor,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Start,
    parse_start,
)
from stream.core.stream_patterns import StreamPatterns


class StreamName(NamedTuple):
    namespace: str
    stream: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.stream}"


def parse_stream(text: str) -> StreamName:
    """Parses "demo/clicks" to namespace and stream."""
    namespace, slash, stream = text.partition("/")
    if not slash:
        raise InvalidArgument(f"stream {text!r}: write NAMESPACE/STREAM, like demo/{text}")
    return StreamName(check_name(namespace, "namespace"), check_name(stream))


class StreamNames(NamedTuple):
    """Names and patterns of streams of one namespace."""

    namespace: str
    streams: tuple[str, ...]


def parse_streams(words: Sequence[str]) -> StreamNames:
    """Parses "demo/clicks", "demo/views-*" to a namespace, and names and patterns in it."""
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


def parse_from(text: str) -> Start:
    """Parses earliest, latest, position, seq:N, end:N, time:ISO, event-time:ISO or cursor:NAME."""
    kind, colon, rest = text.partition(":")
    if colon and kind in ("seq", "end"):
        if not (rest.isascii() and rest.isdigit()):
            raise InvalidArgument(f"--from {text!r}: after {kind}: comes a number, 0 or more")
        return FromSequence(int(rest)) if kind == "seq" else FromEnd(int(rest))
    if colon and kind == "time":
        return FromTime(_milliseconds(kind, rest))
    if colon and kind == "event-time":
        return FromEventTime(_milliseconds(kind, rest))
    if colon and kind == "cursor":
        return FromCursor(check_name(rest, "cursor"))
    try:
        return parse_start(text)
    except InvalidArgument:
        raise InvalidArgument(
            f"--from {text!r}: use earliest, latest, a position like 1:20:0, seq:N, end:N, "
            f"time:2026-01-31T12:00:00Z (when appended), event-time:2026-01-31T12:00:00Z, or "
            f"cursor:NAME"
        ) from None


def _milliseconds(kind: str, text: str) -> int:
    try:
        return parse_time_ms(text)
    except ValueError:
        raise InvalidArgument(
            f"--from {kind}:{text}: not a time; write it like 2026-01-31T12:00:00Z"
        ) from None
