"""Words of the command line that mean something in streams: NS/STREAM and where to start.

Wrong words are InvalidArgument, saying what would be right.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from ledger.errors import InvalidArgument
from stream.core.names import check_name
from stream.core.position import FromSequence, FromTime, Start, parse_start


class StreamName(NamedTuple):
    namespace: str
    stream: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.stream}"


def parse_stream(text: str) -> StreamName:
    """ "demo/clicks" as namespace and stream."""
    namespace, slash, stream = text.partition("/")
    if not slash:
        raise InvalidArgument(f"stream {text!r}: write NAMESPACE/STREAM, like demo/{text}")
    return StreamName(check_name(namespace, "namespace"), check_name(stream))


def parse_from(text: str) -> Start:
    """earliest, latest, a position, seq:N or time:ISO."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "seq":
        if not (rest.isascii() and rest.isdigit()):
            raise InvalidArgument(f"--from {text!r}: after seq: comes a number, 0 or more")
        return FromSequence(int(rest))
    if colon and kind == "time":
        return FromTime(_milliseconds(rest))
    try:
        return parse_start(text)
    except InvalidArgument:
        raise InvalidArgument(
            f"--from {text!r}: use earliest, latest, a position like 1:20:0, seq:N, or "
            f"time:2026-01-31T12:00:00Z"
        ) from None


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"--from time:{text}: not a time; write it like 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
