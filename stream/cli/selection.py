"""Which records `read` and `tail` print: from where, to where, of which key, by which pattern."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from ledger.cli.output import usage
from stream.core.position import Start

if TYPE_CHECKING:
    from stream.core.entry.records import Record, RecordBatch

_NUMBER = validators.Number(gte=0)
_Text = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StartOption:
    start: Annotated[str | None, Parameter(name="--from", allow_leading_hyphen=True)] = None
    """earliest, latest, a position, seq:N, end:N, cursor:NAME, a time (when appended) or
    event-time:TIME. A time is 2026-01-31T12:00:00Z or 1h (an hour ago)."""

    since: _Text = None
    """Records appended at this time or later, like 1h (ago) or 2026-01-31."""

    last: Annotated[int | None, Parameter(name=["-n", "--last"], validator=_NUMBER)] = None
    """Only the last N records; `--grep` and `--key` select from them."""

    @usage()
    def first(self, default: Start) -> Start:
        """Returns where to begin. Raises InvalidArgument."""
        from ledger.errors import InvalidArgument
        from stream.cli.arguments import parse_from
        from stream.core.position import FromEnd, FromTime

        given = [self.start, self.since, self.last]
        if sum(one is not None for one in given) > 1:
            raise InvalidArgument("--from, --since and -n all say where to begin: give one of them")
        if self.last is not None:
            return FromEnd(self.last)
        if self.since is not None:
            return FromTime(_since(self.since))
        return default if self.start is None else parse_from(self.start)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class SelectOption:
    until: _Text = None
    """Records before this: a time (when appended), event-time:TIME, seq:N or a position."""

    grep: _Text = None
    """Records whose value matches this regular expression of Python."""

    key: Annotated[tuple[str, ...], Parameter(negative="", allow_leading_hyphen=True)] = ()
    """Records with this key; may be repeated."""

    count: Annotated[int | None, Parameter(validator=_NUMBER)] = None
    """Stop after N records."""

    @usage()
    def selection(self) -> Selection:
        """Raises InvalidArgument."""
        return Selection(
            until=None if self.until is None else _until(self.until),
            pattern=None if self.grep is None else _pattern(self.grep),
            keys=frozenset(map(os.fsencode, self.key)),
            count=self.count,
        )


def _since(text: str) -> int:
    from ledger.errors import InvalidArgument
    from stream.cli.arguments import parse_from
    from stream.core.position import FromTime

    start = parse_from(text, "--since")
    if not isinstance(start, FromTime):
        raise InvalidArgument(f"--since {text!r}: give a time, like 1h (ago) or 2026-01-31")
    return start.append_time_ms


def _until(text: str) -> Start:
    from ledger.errors import InvalidArgument
    from stream.cli.arguments import parse_from
    from stream.core.position import FromEventTime, FromSequence, FromTime, Position

    end = parse_from(text, "--until")
    if not isinstance(end, FromTime | FromEventTime | FromSequence | Position):
        raise InvalidArgument(
            f"--until {text!r}: give a time, like 1h (ago) or 2026-01-31, event-time:TIME, seq:N, "
            "or a position"
        )
    return end


def _pattern(text: str) -> re.Pattern[str]:
    from ledger.errors import InvalidArgument

    try:
        return re.compile(_decoded(os.fsencode(text)))
    except re.error as error:
        raise InvalidArgument(f"--grep {text!r}: {error}") from None


def _decoded(content: bytes) -> str:
    """Returns UTF-8 as text; other bytes match themselves."""
    return content.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which records of a read are printed."""

    until: Start | None = None
    pattern: re.Pattern[str] | None = None
    keys: frozenset[bytes] = frozenset()
    count: int | None = None

    @property
    def is_all(self) -> bool:
        return self.until is None and self.pattern is None and not self.keys

    @property
    def until_ms(self) -> int | None:
        """The append time before which records are selected, if there is one."""
        from stream.core.position import FromTime

        return self.until.append_time_ms if isinstance(self.until, FromTime) else None

    def of(self, records: Iterable[Record]) -> list[Record]:
        """Returns those that are selected."""
        return [record for record in records if self._has(record)]

    def _has(self, record: Record) -> bool:
        return (
            (not self.keys or record.key in self.keys)
            and (self.until is None or _is_before(record, self.until))
            and (self.pattern is None or self.pattern.search(_decoded(record.value)) is not None)
        )

    def is_over(self, batch: RecordBatch) -> bool:
        """Whether neither the batch nor what is behind it in its stream is selected."""
        from stream.core.position import FromSequence, FromTime, Position

        match self.until:
            case FromTime(append_time_ms=time_ms):
                return batch.append_time_ms >= time_ms
            case FromSequence(sequence=sequence):
                return batch.first_sequence >= sequence
            case Position() as position:
                return batch.first_position >= position
        return False


def _is_before(record: Record, end: Start) -> bool:
    from stream.core.position import FromEventTime, FromSequence, FromTime, Position

    match end:
        case FromTime(append_time_ms=time_ms):
            return record.append_time_ms < time_ms
        case FromEventTime(event_time_ms=time_ms):
            # As in the merged order, a record without an event time has that of its append.
            event_ms = record.event_time_ms
            return (record.append_time_ms if event_ms is None else event_ms) < time_ms
        case FromSequence(sequence=sequence):
            return record.sequence < sequence
    assert isinstance(end, Position), f"{end!r} is no end"
    return record.position < end
