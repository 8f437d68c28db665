"""Arguments as applications give them, and the plain forms that the core takes.

Times are milliseconds since the Unix epoch or datetimes; headers are pairs or a mapping; columns of
records are any iterables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypeVar, cast

from ledger.core.times import milliseconds_of
from ledger.errors import InvalidArgument
from ledger.units import parse_duration_ms
from stream.core.entry.encoder import Headers
from stream.core.entry.record_columns import HeaderPairs, RecordColumns

T = TypeVar("T")

Time = int | datetime
"""Milliseconds since the Unix epoch, or a datetime. One without a time zone is local time, as it is
for `datetime.timestamp`."""

_MILLISECOND = timedelta(milliseconds=1)


def to_ms(time: Time) -> int:
    """Returns the milliseconds since the Unix epoch, rounded down. Raises InvalidArgument."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            # At the ends of the calendar there may be no such time in UTC: a day does not matter.
            with suppress(OverflowError, ValueError):
                time = time.astimezone(UTC)
        return milliseconds_of(time)
    if isinstance(time, bool) or not hasattr(time, "__index__"):
        raise InvalidArgument(
            f"{time!r} is not a time: give milliseconds since 1970 as a whole number, or a datetime"
        )
    return int(time)


Duration = int | str | timedelta
"""Milliseconds, a text like "7d" or "1h30m", or a timedelta."""
Size = int | str
"""Bytes, or a text like "500MB"."""


def to_duration_ms(duration: Duration) -> int:
    """Returns the milliseconds of a duration, rounded down. Raises InvalidArgument."""
    if isinstance(duration, timedelta):
        return duration // _MILLISECOND
    return parse_duration_ms(duration) if isinstance(duration, str) else duration


def columns_of(
    values: Iterable[bytes],
    keys: Iterable[bytes | None] | None,
    event_times: Iterable[Time | None] | None,
    headers: Iterable[Headers | None] | None = None,
) -> RecordColumns:
    """Returns the columns of records as sequences, with all times in milliseconds and all headers
    as pairs."""
    return RecordColumns(
        _listed(values),
        None if keys is None else _listed(keys),
        None if event_times is None else _all_to_ms(_listed(event_times)),
        None if headers is None else _all_to_pairs(headers),
    )


def _all_to_ms(times: Sequence[Time | None]) -> Sequence[int | None]:
    if set(map(type, times)) <= {int, type(None)}:
        return cast("Sequence[int | None]", times)
    return [to_ms(time) if isinstance(time, datetime) else time for time in times]


def _all_to_pairs(headers: Iterable[Headers | None]) -> Sequence[HeaderPairs | None]:
    if isinstance(headers, Mapping):
        raise InvalidArgument(
            "headers are those of one record; give one item per value: [headers] * len(values)"
        )
    return [None if each is None else header_pairs(each) for each in headers]


def _listed(values: Iterable[T]) -> Sequence[T]:
    return values if isinstance(values, Sequence) else list(values)


def header_pairs(
    headers: Iterable[tuple[str, bytes]] | Mapping[str, bytes],
) -> tuple[tuple[str, bytes], ...]:
    """Returns headers that were given as pairs or as a mapping; the caller may change those."""
    return tuple(headers.items() if isinstance(headers, Mapping) else headers)
