"""Times as milliseconds since 1970, as the text of ISO 8601, and back: exact for every number.

A stored time may be any number of 64 bits. A calendar has the years 1 to 9999: a time outside them
stays a number, and must never be an error.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def milliseconds_of(moment: datetime) -> int:
    """Returns milliseconds since 1970, rounded down; a time without a zone is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND


CALENDAR_MS: Final = range(
    milliseconds_of(datetime(1, 1, 1)), milliseconds_of(datetime.max.replace(tzinfo=UTC)) + 1
)
"""The times that ISO 8601 can write: those of the years 1 to 9999."""


def time_text(milliseconds: int) -> str | int:
    """Returns ISO 8601 in UTC, like 2026-01-31T12:00:00.000Z; the number itself if it is in no
    year from 1 to 9999."""
    if milliseconds not in CALENDAR_MS:
        return milliseconds
    moment = _EPOCH + milliseconds * _MILLISECOND
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time_ms(text: str) -> int:
    """Parses ISO 8601, like 2026-01-31T12:00:00Z or 2026-01-31; UTC without a zone.

    Raises ValueError.
    """
    return milliseconds_of(datetime.fromisoformat(text))
