"""The position of a record, and where a reader may start.

`Position(segment, entry, slot)` orders all records of a stream. Positions stay valid forever: a
segment number is never used twice. The text form is "segment:entry:slot".
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ledger.errors import FinalError, InvalidArgument
from stream.core.arguments import Time, to_ms
from stream.core.names import check_name

NUMBER_MAX = (1 << 63) - 1
SLOT_MAX = (1 << 31) - 1


class Position(NamedTuple):
    """The place of a record: segment number, entry id in it, slot in the entry. Positions are
    ordered."""

    segment: int
    entry: int
    slot: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.entry}:{self.slot}"

    @property
    def after(self) -> Position:
        """The lowest position behind this record: where to resume when it has been handled."""
        return Position(self.segment, self.entry, self.slot + 1)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads "segment:entry:slot". Raises InvalidArgument saying which part is wrong."""
        parts = text.split(":")
        if len(parts) != 3:
            raise InvalidArgument(
                f"position {text[:80]!r}: need segment:entry:slot, three numbers, "
                f"like 3:120:0; got {len(parts)} part(s)"
            )
        numbers = []
        for name, part, maximum in zip(
            cls._fields, parts, (NUMBER_MAX, NUMBER_MAX, SLOT_MAX), strict=True
        ):
            if not (part.isascii() and part.isdigit() and len(part) <= 19):
                raise InvalidArgument(
                    f"position {text[:80]!r}: {name} {part[:20]!r} is not a whole number >= 0"
                )
            if int(part) > maximum:
                raise InvalidArgument(f"position {text!r}: {name} is over {maximum}")
            numbers.append(int(part))
        return cls(*numbers)


BEGINNING = Position(0, 0, 0)
"""The position before every record of every stream (segments count from 1)."""


class Edge(enum.Enum):
    """The two ends of a stream, as they are when a reader opens."""

    EARLIEST = "earliest"
    LATEST = "latest"


EARLIEST = Edge.EARLIEST
LATEST = Edge.LATEST


@dataclass(frozen=True, slots=True)
class FromSequence:
    """Start at the record with this sequence number, or the first behind it."""

    sequence: int


@dataclass(frozen=True, slots=True, init=False)
class FromTime:
    """Start at the first record appended at or after this time (ms since the Unix epoch, or a
    datetime)."""

    append_time_ms: int

    def __init__(self, append_time_ms: Time) -> None:
        object.__setattr__(self, "append_time_ms", to_ms(append_time_ms))


@dataclass(frozen=True, slots=True, init=False)
class FromEventTime:
    """Start at the first record whose event time is this or later (ms since the Unix epoch, or a
    datetime).

    Every record with such an event time is at this position or behind it; so are records with
    earlier event times, where they go back, and records without one.
    """

    event_time_ms: int

    def __init__(self, event_time_ms: Time) -> None:
        object.__setattr__(self, "event_time_ms", to_ms(event_time_ms))


@dataclass(frozen=True, slots=True)
class FromCursor:
    """Start where this durable cursor of the stream is, as it is when the reader opens."""

    name: str


@dataclass(frozen=True, slots=True)
class FromEnd:
    """Start this many records before the end as it is when the reader opens, or where the stream
    begins if it has fewer. With 0 it is LATEST."""

    records: int


Start = Edge | Position | FromSequence | FromTime | FromEventTime | FromCursor | FromEnd

START_FORMS = (
    "earliest, latest, segment:entry:slot, sequence=N, time=MS, event-time=MS, cursor=NAME or end=N"
)
_NUMBERED: tuple[tuple[str, Callable[[int], Start]], ...] = (
    ("sequence=", FromSequence),
    ("time=", FromTime),
    ("event-time=", FromEventTime),
    ("end=", FromEnd),
)


def _number(text: str, number: str, *, may_be_negative: bool) -> int:
    """Parses the number of a start `text`. An event time before 1970 is negative."""
    digits = number.removeprefix("-") if may_be_negative else number
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 19
    if not (is_number and -NUMBER_MAX - 1 <= int(number) <= NUMBER_MAX):
        bounds = "a 64-bit number" if may_be_negative else "a number >= 0"
        raise InvalidArgument(f"start {text[:80]!r}: {number[:20]!r} is not {bounds}")
    return int(number)


def parse_start(text: str) -> Start:
    """Reads "earliest", "latest", "segment:entry:slot", "sequence=N", "time=MS" (appended),
    "event-time=MS" (below 0 before 1970), "cursor=NAME" or "end=N" (records before the end).

    Raises InvalidArgument naming the accepted forms.
    """
    word = text.strip()
    if word.lower() in ("earliest", "latest"):
        return Edge(word.lower())
    for prefix, kind in _NUMBERED:
        if word.startswith(prefix):
            return kind(_number(text, word[len(prefix) :], may_be_negative=kind is FromEventTime))
    if word.startswith("cursor="):
        return FromCursor(check_name(word.removeprefix("cursor="), "cursor"))
    if ":" in word:
        return Position.parse(word)
    raise InvalidArgument(f"start {text[:80]!r}: use {START_FORMS}")


class Truncated(FinalError):
    """The requested position was truncated; `first_available` is where the stream begins."""

    def __init__(self, stream: str, wanted: object, first_available: Position) -> None:
        self.stream = stream
        self.wanted = wanted
        self.first_available = first_available
        super().__init__(self._message())

    def _message(self) -> str:
        return (
            f"stream {self.stream!r}: position {self.wanted} was truncated; the first available "
            f"position is {self.first_available}. Read from there (some records are gone), or keep "
            f"data longer (retention_ms, retention_bytes)"
        )

    def __reduce__(self) -> tuple[type[Truncated], tuple[str, object, Position]]:
        return type(self), (self.stream, self.wanted, self.first_available)


class PositionLost(Truncated):
    """The requested position is of records that were lost when the metadata or the disks were put
    back to an older state. `first_available` is where the records after them begin."""

    def _message(self) -> str:
        return (
            f"stream {self.stream!r}: position {self.wanted} is of records that were lost when the "
            f"cluster was put back to an older state; the records after them begin at "
            f"{self.first_available}. Read from there, and see `ledgerstream metadata restores`"
        )
