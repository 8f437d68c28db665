"""Metadata of a stream, and its legal changes.

`StreamMetadata` is immutable; a transition returns the next value or raises. Must never let two
segments be open or a position denote two records. Its bytes are in core/metadata/format.py; how
segments leave it, and are restored, is in core/trash.py.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ledger.errors import InvalidArgument, MetadataConflict, MetadataCorrupt
from stream.core.entry.format import EntryHeader
from stream.core.position import BEGINNING, Position, PositionLost, Truncated
from stream.errors import TooManyProducers

SEGMENTS_PER_RESTORE = 1_000_000
SEQUENCES_PER_RESTORE = 1_000_000_000_000
"""After the metadata was put back to an older state, a stream continues at the next multiple of
these: what the lost history may have numbered is never numbered again (docs/adr/0027)."""

PRODUCERS_MAX = 1000
"""Idempotent producers that one stream remembers."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    """An idempotent producer: its number in entry headers, the sequence of its last record in a
    sealed segment (-1: none), and the number of that segment."""

    producer_id: int
    last_sequence: int = -1
    segment: int = 0


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
    """A segment of a stream: one ledger. Sizes, times and `last_entry` are known once it is sealed.

    The range of event times is -1 where it is not known: no record has one, or recovery sealed the
    segment. `dropped_ms` is when its last record was truncated: it stays in the trash from then on.
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

    @property
    def is_open(self) -> bool:
        return self.state is SegmentState.OPEN

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
class Interrupted:
    """The segment of the present writer that a concurrent commit ended: its ledger and last entry
    (-1: none). The writer sends what was behind it again, in its next segment."""

    ledger_id: int
    last_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMetadata:
    """A stream. Segments are in order; at most the last one is open.

    `epoch` counts takeovers. Readers can no longer read records before `truncated_to`. `prepared`
    is the ledger made ahead for the next segment. `garbage` are ledgers that hold nothing of the
    stream and wait for deletion. `interrupted` is set by a commit beside a writer until that writer
    continues, or another takes over. `producers` is what each idempotent producer had in the stream
    when the last segment was sealed, `producers_made` how many numbers were assigned to producers.
    `deleted_ms` is when the stream went to the trash; with `is_purged` it cannot be restored from
    there. `restores` counts the restores of the metadata behind which the stream continued.
    """

    name: str
    created_ms: int
    epoch: int = 0
    segments: tuple[Segment, ...] = ()
    truncated_to: Position = BEGINNING
    next_segment: int = 1
    next_sequence: int = 0
    prepared: int | None = None
    garbage: tuple[int, ...] = ()
    interrupted: Interrupted | None = None
    is_deleted: bool = False
    deleted_ms: int = -1
    is_purged: bool = False
    producers: Mapping[str, ProducerState] = field(default_factory=dict)
    producers_made: int = 0
    restores: int = 0

    def __post_init__(self) -> None:
        def fail(what: str) -> MetadataCorrupt:
            return MetadataCorrupt(f"stream {self.name!r}: {what}")

        if min(self.epoch, self.next_sequence, self.next_segment - 1) < 0:
            raise fail("epoch, next_sequence or next_segment is negative")
        last_number, sequence = 0, None
        for segment in self.segments:
            if segment.number <= last_number:
                raise fail(f"segment {segment.number} follows segment {last_number}")
            if sequence is not None and not _continues(sequence, segment.first_sequence):
                raise fail(
                    f"segment {segment.number} begins at sequence {segment.first_sequence}, "
                    f"the one before ends at {sequence}"
                )
            if segment.is_open and segment is not self.segments[-1]:
                raise fail(f"segment {segment.number} is open but not the last")
            last_number = segment.number
            sequence = segment.first_sequence + segment.records
        if last_number >= self.next_segment:
            raise fail(f"segment {last_number} exists, next_segment is {self.next_segment}")
        if sequence is not None and not _continues(sequence, self.next_sequence):
            raise fail(f"segments end at sequence {sequence}, not {self.next_sequence}")
        if self.interrupted is not None and self.open_segment is not None:
            raise fail("a segment is open and another interrupted")
        if len(self.producers) > PRODUCERS_MAX:
            raise fail(f"{len(self.producers)} producers, limit {PRODUCERS_MAX}")
        numbers = [state.producer_id for state in self.producers.values()]
        if len(set(numbers)) != len(numbers) or max(numbers, default=0) > self.producers_made:
            raise fail(f"numbers {sorted(numbers)} of producers, {self.producers_made} were made")

    # Queries

    @property
    def open_segment(self) -> Segment | None:
        return self.segments[-1] if self.segments and self.segments[-1].is_open else None

    @property
    def sealed_end(self) -> Position:
        """The position behind the last record that the metadata alone shows."""
        if not self.segments:
            return max(Position(self.next_segment, 0, 0), self.truncated_to)
        last = self.segments[-1]
        return Position(last.number, 0, 0) if last.is_open else last.end

    @property
    def last_time_ms(self) -> int:
        """The highest append time in sealed segments, -1 if unknown."""
        return max((segment.last_time_ms for segment in self.segments), default=-1)

    @property
    def first_available(self) -> Position:
        """The first position that a reader can read."""
        live = self.live()
        begin = Position(live[0].number if live else self.next_segment, 0, 0)
        return max(begin, self.truncated_to)

    def is_dropped(self, segment: Segment) -> bool:
        """Whether every record of this sealed segment was truncated."""
        return not segment.is_open and segment.end <= self.truncated_to

    def dropped(self) -> tuple[Segment, ...]:
        """Returns the segments in the trash. They are a prefix."""
        return self.segments[: self._count_dropped()]

    def live(self) -> tuple[Segment, ...]:
        """Returns the segments from which a reader can read something."""
        return self.segments[self._count_dropped() :]

    def _count_dropped(self) -> int:
        for count, segment in enumerate(self.segments):
            if not self.is_dropped(segment):
                return count
        return len(self.segments)

    def segment_at(self, position: Position) -> Segment | None:
        """Returns the segment that holds `position`, or the next one behind it; None at the end."""
        for segment in self.segments:
            if segment.number == position.segment:
                if segment.is_open or position.entry <= segment.last_entry:
                    return segment
            elif segment.number > position.segment:
                return segment
        return None

    def check_position(
        self, position: Position, *, restores: int = 0, is_given: bool = False
    ) -> None:
        """Checks that records from `position` on can be read, now or later.

        `restores` counts the known restores of the metadata. With `is_given` the position was given
        out at some time, perhaps by a history that was lost; otherwise a reader has arrived there,
        and may pass a gap.

        Raises Truncated; PositionLost if the record there was lost by a restore.
        """
        if position < self.truncated_to:
            raise Truncated(self.name, position, self.first_available)
        is_due = restores > self.restores  # the gap follows when the next segment is begun
        if not (self.restores or is_due) or (position.segment >= self.next_segment and not is_due):
            return
        before = next((s for s in reversed(self.segments) if s.number <= position.segment), None)
        behind = self.truncated_to
        if before is not None and before.number < position.segment:
            behind = Position(before.number + 1, 0, 0)
        elif before is not None:
            if before.is_open or position <= before.end:
                return
            behind = before.end
        following = self.segment_at(position)
        number = self.next_segment if following is None else following.number
        if following is None and is_due:
            number = _next_multiple(self.next_segment, SEGMENTS_PER_RESTORE)
        is_before_gap = number >= _next_multiple(position.segment, SEGMENTS_PER_RESTORE)
        is_passing = position <= max(behind, self.truncated_to)
        if is_before_gap and not (is_passing and not is_given) and position != self.truncated_to:
            raise PositionLost(self.name, position, Position(number, 0, 0))

    def ledgers(self) -> tuple[int, ...]:
        """Returns every ledger that this stream names, in use or garbage."""
        prepared = () if self.prepared is None else (self.prepared,)
        return (*(segment.ledger_id for segment in self.segments), *prepared, *self.garbage)

    # Changes. `epoch` is the one that the caller believes it holds.

    def _check_owner(self, epoch: int) -> None:
        if self.is_deleted or epoch != self.epoch:
            raise MetadataConflict(
                f"stream {self.name!r} is at epoch {self.epoch}, the change is of epoch {epoch}"
                + (" (the stream was deleted)" if self.is_deleted else "")
            )

    def taken_over(self) -> StreamMetadata:
        """Returns the stream at the next epoch. A ledger that was prepared becomes garbage."""
        return replace(self._without_prepared(), epoch=self.epoch + 1, interrupted=None)

    def released(self, epoch: int) -> StreamMetadata:
        """Returns the stream after its writer ended: nothing waits for it any longer."""
        self._check_owner(epoch)
        return replace(self, interrupted=None)

    def with_prepared(self, epoch: int, ledger_id: int) -> StreamMetadata:
        """Returns the stream with a ledger made ahead, so that it is found if its writer dies."""
        self._check_owner(epoch)
        if self.prepared is not None and self.prepared != ledger_id:
            raise MetadataConflict(f"stream {self.name!r}: ledger {self.prepared} is prepared")
        return replace(self, prepared=ledger_id)

    def sealed(self, epoch: int, end: SegmentEnd, now_ms: int) -> StreamMetadata:
        """Returns the stream with its open segment sealed; without records it is removed as
        garbage."""
        self._check_owner(epoch)
        segment = self.open_segment
        if segment is None:
            raise MetadataConflict(f"stream {self.name!r} has no open segment to seal")
        if end.records < 0 or (end.records == 0) != (end.last_entry < 0):
            raise InvalidArgument(f"{end.records} records up to entry {end.last_entry}")
        if end.records == 0:
            garbage = (*self.garbage, segment.ledger_id)
            return replace(self, segments=self.segments[:-1], garbage=garbage)
        fresh = segment.sealed(end, now_ms)
        if self.is_dropped(fresh):
            fresh = replace(fresh, dropped_ms=now_ms)
        return replace(
            self,
            segments=(*self.segments[:-1], fresh),
            next_sequence=segment.first_sequence + end.records,
            producers=self._producers_at(end, segment.number),
        )

    def _producers_at(self, end: SegmentEnd, segment: int) -> Mapping[str, ProducerState]:
        """Returns the producers once `segment` has this end; forgotten ones stay forgotten."""
        last = dict(end.producers)
        if not last:
            return self.producers
        return {
            name: replace(state, last_sequence=last[state.producer_id], segment=segment)
            if last.get(state.producer_id, -1) > state.last_sequence
            else state
            for name, state in self.producers.items()
        }

    def with_producer(self, epoch: int, name: str) -> StreamMetadata:
        """Returns the stream with a number for this producer; numbers are never reused.

        Raises TooManyProducers.
        """
        self._check_owner(epoch)
        if name in self.producers:
            return self
        if len(self.producers) >= PRODUCERS_MAX:
            raise TooManyProducers(
                f"stream {self.name!r} remembers {len(self.producers)} producers, limit "
                f"{PRODUCERS_MAX}; forget those that will not return (forget_producer)"
            )
        number = self.producers_made + 1
        return replace(
            self,
            producers={**self.producers, name: ProducerState(number)},
            producers_made=number,
        )

    def without_producer(self, name: str) -> StreamMetadata:
        """Returns the stream without a producer: if it returns, it is a new one."""
        left = {other: state for other, state in self.producers.items() if other != name}
        return replace(self, producers=left)

    def continued_after(self, restores: int) -> StreamMetadata:
        """Returns the stream without an open segment such that its next segment and the records in
        it have no number that a history before the last of `restores` may have given out."""
        if restores <= self.restores:
            return self
        assert self.open_segment is None, f"stream {self.name!r} has an open segment"
        sequence = self.next_sequence
        if self.segments or sequence:  # otherwise the stream is new: its sequences are its own
            sequence = _next_multiple(sequence, SEQUENCES_PER_RESTORE)
        return replace(
            self,
            next_segment=_next_multiple(self.next_segment, SEGMENTS_PER_RESTORE),
            next_sequence=sequence,
            restores=restores,
        )

    def begun(self, epoch: int, ledger_id: int, now_ms: int) -> StreamMetadata:
        """Returns the stream with a new open segment. Another prepared ledger becomes garbage."""
        self._check_owner(epoch)
        if self.open_segment is not None:
            raise MetadataConflict(
                f"stream {self.name!r}: segment {self.open_segment.number} is still open"
            )
        segment = Segment(self.next_segment, ledger_id, self.next_sequence, now_ms)
        return replace(
            self._without_prepared(ledger_id),
            segments=(*self.segments, segment),
            next_segment=self.next_segment + 1,
            interrupted=None,
        )

    def _without_prepared(self, used: int | None = None) -> StreamMetadata:
        if self.prepared is None:
            return self
        garbage = self.garbage if self.prepared == used else (*self.garbage, self.prepared)
        return replace(self, prepared=None, garbage=garbage)

    def truncated(self, position: Position, now_ms: int) -> StreamMetadata:
        """Returns the stream without records before `position`, and whole segments in the trash.

        Moves forward only; an older position changes nothing. Raises InvalidArgument for a position
        behind the end of the stream.
        """
        segment = self.open_segment
        limit = self.sealed_end if segment is None else Position(segment.number, (1 << 63) - 1, 0)
        if position > max(limit, self.truncated_to):
            raise InvalidArgument(
                f"stream {self.name!r}: cannot truncate to {position}, it ends at {limit}"
            )
        moved = replace(self, truncated_to=max(position, self.truncated_to))
        marked = tuple(
            replace(segment, dropped_ms=now_ms) if segment.dropped_ms < 0 else segment
            for segment in moved.dropped()
        )
        return replace(moved, segments=(*marked, *moved.live()))

    def forgotten(self, ledger_ids: Iterable[int]) -> StreamMetadata:
        """Returns the stream without these ledgers, which no longer exist: garbage only."""
        gone = set(ledger_ids)
        for segment in self.segments:
            if segment.ledger_id in gone:
                raise MetadataConflict(
                    f"stream {self.name!r}: segment {segment.number} is not purged"
                )
        return replace(
            self,
            garbage=tuple(ledger for ledger in self.garbage if ledger not in gone),
        )


def _next_multiple(number: int, step: int) -> int:
    return (number // step + 1) * step


def _continues(end: int, begin: int) -> bool:
    """Whether a segment may begin at sequence `begin` behind one that ends at `end`: at once, or
    behind the gap of a restore."""
    return begin == end or (begin > end and begin % SEQUENCES_PER_RESTORE == 0)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it is now. Records first_sequence..next_sequence-1 can be read."""

    name: str
    epoch: int
    created_ms: int
    segments: int
    sealed_bytes: int
    has_open_segment: bool
    first_position: Position
    end_position: Position
    first_sequence: int
    next_sequence: int

    @property
    def records(self) -> int:
        return self.next_sequence - self.first_sequence
