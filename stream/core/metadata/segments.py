"""A segment of a stream, and a run of neighbouring segments in short.

Immutable. Both kinds of `Span` answer the same questions, so that what is decided by sums and
bounds needs no single segments.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from stream.core.entry.format import EntryHeader
from stream.core.position import Position


class SegmentState(enum.Enum):
    OPEN = "open"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Where a segment ended: facts read from its closed ledger.

    `last_entry` is -1 and the times are -1 if it holds no record; `nbytes` are payload bytes. The
    range of event times is -1 if it is not known. `producers` are pairs of a producer's number and
    the sequence of its last record in the segment.
    """

    last_entry: int
    records: int
    nbytes: int
    first_time_ms: int = -1
    last_time_ms: int = -1
    event_min_ms: int = -1
    event_max_ms: int = -1
    producers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a stream, in one ledger. Sizes, times and `last_entry` are known once it is
    sealed.

    The range of event times is -1 where it is not known: no record has one, or recovery sealed the
    segment. `dropped_ms` is when its last record was truncated: it stays in the trash from then on.

    `made_on` is the ledger that it was written to if it was merged with its neighbours since, -1
    otherwise. Then they share `ledger_id`: its entry n is entry `base_entry` + n there, behind
    `base_bytes` of payload. Positions, sequences and times are what they were.
    """

    number: int
    ledger_id: int
    first_sequence: int
    created_ms: int
    state: SegmentState = SegmentState.OPEN
    last_entry: int = -1
    records: int = 0
    nbytes: int = 0
    first_time_ms: int = -1
    last_time_ms: int = -1
    sealed_ms: int = -1
    event_min_ms: int = -1
    event_max_ms: int = -1
    dropped_ms: int = -1
    made_on: int = -1
    base_entry: int = 0
    base_bytes: int = 0

    @property
    def is_open(self) -> bool:
        return self.state is SegmentState.OPEN

    @property
    def is_merged(self) -> bool:
        """Whether it shares a ledger with its neighbours."""
        return self.made_on >= 0

    @property
    def ledgers(self) -> int:
        """How many ledgers begin in it: of merged segments the first one counts."""
        return int(self.base_entry == 0)

    @property
    def ledger_first(self) -> int:
        return self.ledger_id

    @property
    def ledger_last(self) -> int:
        return self.ledger_id

    def is_on(self, ledger_id: int) -> bool:
        """Whether this ledger has its entries, or had them before the segment was merged."""
        return ledger_id in (self.ledger_id, self.made_on)

    @property
    def count(self) -> int:
        return 1

    @property
    def last_number(self) -> int:
        return self.number

    @property
    def newest_ms(self) -> int:
        """When its newest record was appended, or a time no earlier than that if it is not known.

        A record is no older than its segment: the clock of its writer was wrong then.
        """
        known_ms = self.last_time_ms if self.last_time_ms >= 0 else self.sealed_ms
        return max(known_ms, self.created_ms)

    @property
    def end(self) -> Position:
        """The position behind the last record of a sealed segment."""
        assert not self.is_open, f"segment {self.number} is open: its end is not known"
        return Position(self.number, self.last_entry + 1, 0)

    @property
    def next_sequence(self) -> int:
        """The sequence of the first record behind a sealed segment."""
        assert not self.is_open, f"segment {self.number} is open: its end is not known"
        return self.first_sequence + self.records

    def time_of(self, header: EntryHeader) -> int:
        """Returns the append time of an entry of this segment; for an entry that was written before
        a sink committed it, the time of the commit."""
        if header.is_sequence_in_segment and self.last_time_ms >= 0:
            return self.last_time_ms
        return header.append_time_ms

    def sequence_of(self, header: EntryHeader) -> int:
        """Returns the sequence of the first record of an entry of this segment."""
        base = self.first_sequence if header.is_sequence_in_segment else 0
        return base + header.first_sequence

    def sealed(self, end: SegmentEnd, now_ms: int) -> Segment:
        assert self.is_open, f"segment {self.number} is sealed already"
        return replace(
            self, state=SegmentState.SEALED, last_entry=end.last_entry, records=end.records,
            nbytes=end.nbytes, first_time_ms=end.first_time_ms, last_time_ms=end.last_time_ms,
            sealed_ms=now_ms, event_min_ms=end.event_min_ms, event_max_ms=end.event_max_ms,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """Sealed segments `number` to `last_number`, neighbours, that are stored in a page or in pages
    below it, in short. `digest` is that of the page's bytes.

    `last_entry` is that of the last segment; `newest_ms`, `last_time_ms` and `event_max_ms` are the
    highest of all, the last one -1 if it is not known of each. Segments were written to ledgers
    with ids from `ledger_min` to `ledger_max`; those that were merged since are on ledgers from
    `merged_min` to `merged_max` (-1: none was). These ids are far apart: in one range they would
    have the ids of half of all ledgers. `ledgers` begin in it; the first segment is on
    `ledger_first`, from entry `base_entry` on, the last on `ledger_last`. `dropped_ms`, when the
    first segment was truncated (-1: not all of them were), is not stored: the list of drop marks
    has it.
    """

    digest: str
    number: int
    last_number: int
    count: int
    first_sequence: int
    next_sequence: int
    last_entry: int
    records: int
    nbytes: int
    created_ms: int
    newest_ms: int
    last_time_ms: int
    event_max_ms: int
    ledger_min: int
    ledger_max: int
    merged_min: int
    merged_max: int
    ledger_first: int
    ledger_last: int
    ledgers: int
    base_entry: int
    dropped_ms: int = -1

    @property
    def is_open(self) -> bool:
        return False

    @property
    def end(self) -> Position:
        """The position behind the last record."""
        return Position(self.last_number, self.last_entry + 1, 0)

    @property
    def is_one_ledger(self) -> bool:
        """Whether all its segments are on one ledger. Those of a ledger are neighbours."""
        return self.ledger_first == self.ledger_last

    def is_on(self, ledger_id: int) -> bool:
        """Whether a segment may be on this ledger, or may have been before it was merged."""
        return (
            self.ledger_min <= ledger_id <= self.ledger_max
            or self.merged_min <= ledger_id <= self.merged_max
        )


Span = Segment | Run


def summed(digest: str, spans: tuple[Span, ...]) -> Run:
    """Returns what the page of these neighbours is in short."""
    first, last = spans[0], spans[-1]
    events = [span.event_max_ms for span in spans]
    mins, maxs, merged_mins, merged_maxs = zip(*map(_ledger_ranges, spans), strict=True)
    return Run(
        digest,
        first.number,
        last.last_number,
        sum(span.count for span in spans),
        first.first_sequence,
        last.next_sequence,
        last.last_entry,
        sum(span.records for span in spans),
        sum(span.nbytes for span in spans),
        min(span.created_ms for span in spans),
        max(span.newest_ms for span in spans),
        max(span.last_time_ms for span in spans),
        -1 if min(events) < 0 else max(events),
        min(mins),
        max(maxs),
        min((ledger for ledger in merged_mins if ledger >= 0), default=-1),
        max(merged_maxs),
        first.ledger_first,
        last.ledger_last,
        sum(span.ledgers for span in spans),
        first.base_entry,
    )


def _ledger_ranges(span: Span) -> tuple[int, int, int, int]:
    """Returns the least and the highest ledger that segments were written to, and of those that
    merged ones are on."""
    if isinstance(span, Run):
        return span.ledger_min, span.ledger_max, span.merged_min, span.merged_max
    if span.is_merged:
        return span.made_on, span.made_on, span.ledger_id, span.ledger_id
    return span.ledger_id, span.ledger_id, -1, -1
