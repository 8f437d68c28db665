"""Metadata of a stream, and its legal changes.

`StreamMetadata` is immutable; a transition returns the next value or raises. Must never let two
segments be open or a position denote two records. Its bytes are in core/metadata/format.py; how
segments leave it, and are restored, is in core/trash.py. A method that raises PagesNeeded is called
through the shell (store/pages.py), unless the stream has no pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice

from ledger.errors import InvalidArgument, MetadataConflict, MetadataCorrupt
from stream.core.metadata.pages import NO_PAGES, Pages
from stream.core.metadata.segments import Run, Span
from stream.core.metadata.segments import Segment as Segment
from stream.core.metadata.segments import SegmentEnd as SegmentEnd
from stream.core.metadata.segments import SegmentState as SegmentState
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


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The segment of the present writer that a concurrent commit ended: its ledger and last entry
    (-1: none). The writer sends what was behind it again, in its next segment."""

    ledger_id: int
    last_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMetadata:
    """A stream. Segments are in order; at most the last one is open. `segments` are the newest, all
    older ones are in `pages`, without which there may be none.

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
    pages: Pages = NO_PAGES
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
        if self.pages and not (self.segments or self.is_purged):
            raise fail("all its segments are in pages")
        if self.is_purged and not self.is_deleted:
            raise fail("it is purged, but not deleted")
        last_number, sequence = 0, None
        for segment in self.listed_spans:
            if segment.number <= last_number:
                raise fail(f"segment {segment.number} follows segment {last_number}")
            if sequence is not None and not _continues(sequence, segment.first_sequence):
                raise fail(
                    f"segment {segment.number} begins at sequence {segment.first_sequence}, "
                    f"the one before ends at {sequence}"
                )
            if segment.is_open and segment is not self.segments[-1]:
                raise fail(f"segment {segment.number} is open but not the last")
            last_number = segment.last_number
            sequence = segment.first_sequence + segment.records
            if isinstance(segment, Run):  # in which sequences may have gaps
                sequence = segment.next_sequence
        if last_number >= self.next_segment:
            raise fail(f"segment {last_number} exists, next_segment is {self.next_segment}")
        if self.is_purged:
            sequence = None  # the newest segments are garbage, pages are left
        if sequence is not None and not _continues(sequence, self.next_sequence):
            raise fail(f"segments end at sequence {sequence}, not {self.next_sequence}")
        if self.interrupted is not None and self.open_segment is not None:
            raise fail("a segment is open and another interrupted")
        if len(self.producers) > PRODUCERS_MAX:
            raise fail(f"{len(self.producers)} producers, limit {PRODUCERS_MAX}")
        numbers = [state.producer_id for state in self.producers.values()]
        if len(set(numbers)) != len(numbers) or max(numbers, default=0) > self.producers_made:
            raise fail(f"numbers {sorted(numbers)} of producers, {self.producers_made} were made")

    def with_pages_read(
        self, loaded: Mapping[str, tuple[Span, ...]], lost: AbstractSet[str]
    ) -> StreamMetadata:
        """Returns the stream with these pages, by digest, at hand. It is not checked again."""
        if not self.pages.folder:
            return self
        stream = copy(self)
        object.__setattr__(stream, "pages", replace(self.pages, loaded=loaded, lost=lost))
        return stream

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
        return max((span.last_time_ms for span in self.listed_spans), default=-1)

    @property
    def first_available(self) -> Position:
        """The first position that a reader can read. Raises PagesNeeded."""
        first = self.span_at(self.truncated_to)
        begin = Position(self.next_segment if first is None else first.number, 0, 0)
        return max(begin, self.truncated_to)

    def is_dropped(self, span: Span) -> bool:
        """Whether every record of this sealed segment, or of this run of them, was truncated."""
        return not span.is_open and span.end <= self.truncated_to

    def is_live(self, span: Span) -> bool:
        """Whether a reader can read something of this segment, or of one in this run."""
        return not self.is_dropped(span)

    def is_cut(self, span: Span) -> bool:
        """Whether something at the begin of this live segment or run was truncated or purged."""
        return span.number < self.pages.first or Position(span.number, 0, 0) < self.truncated_to

    @property
    def listed_spans(self) -> tuple[Span, ...]:
        """What the document lists: its pages in short, and the newest segments. A page may have
        segments that were purged."""
        return (*self.pages.roots, *self.segments)

    def spans(self) -> Iterator[Span]:
        """Yields all segments, the older ones in runs. Raises PagesNeeded."""
        yield from self.pages.spans()
        yield from self.segments

    def dropped(self, through: int = 0) -> tuple[Span, ...]:
        """Returns the segments in the trash, which are a prefix. No run goes beyond segment number
        `through` that begins before it. Raises PagesNeeded."""

        def is_mixed(run: Run) -> bool:
            is_begun = Position(run.number, 0, 0) < self.truncated_to
            return is_begun and (self.is_live(run) or run.number <= through < run.last_number)

        found: list[Span] = []
        for span in self.spans():
            if Position(span.number, 0, 0) >= self.truncated_to:
                break
            found += filter(self.is_dropped, self.pages.split(span, is_mixed))
        return tuple(found)

    def times_dropped(self, now_ms: int) -> Iterator[tuple[int, int]]:
        """Yields numbers of truncated segments, ascending, with the time of truncation of the
        segments behind the number before; `now_ms` where it is not known. Raises PagesNeeded."""
        marks = self.pages.marks
        yield from marks
        last = self.dropped_in_pages() if self.pages else 0
        if last > (marks[-1][0] if marks else 0):
            yield last, now_ms
        for segment in self.segments:
            if self.is_live(segment):
                break
            yield segment.number, segment.dropped_ms if segment.dropped_ms >= 0 else now_ms

    def live(self) -> tuple[Span, ...]:
        """Returns the segments from which a reader can read something. Raises PagesNeeded."""

        def is_mixed(run: Run) -> bool:
            return self.is_live(run) and self.is_cut(run)

        return tuple(
            part
            for span in self.listed_spans
            if self.is_live(span)
            for part in self.pages.split(span, is_mixed)
            if self.is_live(part)
        )

    def listed(self, skip: int, count: int) -> list[Segment]:
        """Returns up to `count` segments behind the first `skip`. Raises PagesNeeded."""
        found: list[Segment] = []
        stack: list[Span] = [*self.spans()][::-1]
        while stack and len(found) < count:
            span = stack.pop()
            if span.count <= skip:
                skip -= span.count
            elif isinstance(span, Run):
                stack += self.pages.below(span)[::-1]
            else:
                found.append(span)
        return found

    def first_where(self, holds: Callable[[Span], bool]) -> Segment | None:
        """Returns the first segment for which `holds`; it must hold for a run that has one. Raises
        PagesNeeded."""
        found = self.pages.first_where(holds) if self.pages else None
        return found or next((segment for segment in self.segments if holds(segment)), None)

    def last_where(self, holds: Callable[[Span], bool]) -> Segment | None:
        """Returns the last segment for which `holds`; otherwise as `first_where`."""
        found = next((segment for segment in reversed(self.segments) if holds(segment)), None)
        return self.pages.last_where(holds) if found is None and self.pages else found

    def segment_at(self, position: Position) -> Segment | None:
        """Returns the segment that holds `position`, or the next one behind it; None at the end.
        Raises PagesNeeded."""
        return self.first_where(lambda span: _reaches(span, position))

    def span_at(self, position: Position) -> Span | None:
        """As `segment_at`, but returns a run if `position` is before all that it has: no page is
        needed to say where that begins."""
        stack = [*self.listed_spans][::-1]
        while stack:
            span = stack.pop()
            if not _reaches(span, position):
                continue
            is_in = span.number < self.pages.first or Position(span.number, 0, 0) < position
            if isinstance(span, Segment) or not is_in:
                return span
            stack += self.pages.below(span)[::-1]
        return None

    def together_at(self, position: Position, count: int) -> tuple[Segment, ...]:
        """Returns the segment of `segment_at` and those behind it on the same ledger, up to `count`
        in all; none at the end. Raises PagesNeeded."""
        first = self.segment_at(position)
        if first is None or not first.is_merged:
            return () if first is None else (first,)
        number, ledger_id = first.number, first.ledger_id

        def is_there(span: Span) -> bool:
            return span.number <= number or span.ledger_first == ledger_id

        return tuple(islice(self.pages.stored_since(number, is_there), count))

    def check_position(
        self, position: Position, *, restores: int = 0, is_given: bool = False
    ) -> None:
        """Checks that records from `position` on can be read, now or later.

        `restores` counts the known restores of the metadata. With `is_given` the position was given
        out at some time, perhaps by a history that was lost; otherwise a reader has arrived there,
        and may pass a gap.

        Raises Truncated; PositionLost if the record there was lost by a restore; PagesNeeded.
        """
        if position < self.truncated_to:
            raise Truncated(self.name, position, self.first_available)
        is_due = restores > self.restores  # the gap follows when the next segment is begun
        if not (self.restores or is_due) or (position.segment >= self.next_segment and not is_due):
            return
        before = self.last_where(lambda span: span.number <= position.segment)
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
        """Returns the ledgers that the document itself names, in use or garbage: not those of
        pages."""
        prepared = () if self.prepared is None else (self.prepared,)
        return (*(segment.ledger_id for segment in self.segments), *prepared, *self.garbage)

    @property
    def has_ledgers(self) -> bool:
        """Whether the stream names any ledger."""
        return bool(self.ledgers() or self.pages or self.pages.replaced)

    def names(self, ledger_id: int) -> bool:
        """Whether the stream needs this ledger, or a segment was made on it, which may have been
        merged since. Raises PagesNeeded."""
        return self.needs(ledger_id) or self.segment_on(ledger_id) is not None

    def needs(self, ledger_id: int) -> bool:
        """Whether the ledger is in use, kept for readers, or garbage. Raises PagesNeeded."""

        def is_on(span: Span) -> bool:
            return span.is_on(ledger_id) if isinstance(span, Run) else span.ledger_id == ledger_id

        is_listed = ledger_id in self.ledgers() or self.pages.was_replaced(ledger_id)
        return is_listed or self.last_where(is_on) is not None

    def segment_on(self, ledger_id: int) -> Segment | None:
        """Returns the segment that was made on this ledger; for a ledger of merged segments, the
        last of them. Raises PagesNeeded."""
        return self.last_where(lambda span: span.is_on(ledger_id))

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
        behind the end of the stream; PagesNeeded.
        """
        segment = self.open_segment
        limit = self.sealed_end if segment is None else Position(segment.number, (1 << 63) - 1, 0)
        if position > max(limit, self.truncated_to):
            raise InvalidArgument(
                f"stream {self.name!r}: cannot truncate to {position}, it ends at {limit}"
            )
        moved = replace(self, truncated_to=max(position, self.truncated_to))
        marked = tuple(
            replace(segment, dropped_ms=now_ms)
            if segment.dropped_ms < 0 and moved.is_dropped(segment)
            else segment
            for segment in self.segments
        )
        through = moved.dropped_in_pages()
        pages = moved.pages.marked(through, now_ms) if through else moved.pages
        return replace(moved, segments=marked, pages=pages)

    def dropped_in_pages(self) -> int:
        """Returns the number of the last truncated segment in pages, 0 if there is none. Raises
        PagesNeeded."""
        return self._last_dropped(self.pages.roots)

    def last_dropped(self) -> int:
        """Returns the number of the last truncated segment, 0 if there is none. Raises
        PagesNeeded."""
        return self._last_dropped(self.listed_spans)

    def _last_dropped(self, spans: tuple[Span, ...]) -> int:
        for span in reversed(spans):
            if self.is_dropped(span):
                return span.last_number
            if isinstance(span, Run) and Position(span.number, 0, 0) < self.truncated_to:
                found = self._last_dropped(self.pages.below(span))
                if found:
                    return found
        return 0

    def forgotten(self, ledger_ids: Iterable[int]) -> StreamMetadata:
        """Returns the stream without these ledgers, which no longer exist: garbage only."""
        gone = set(ledger_ids)  # of garbage: no page has any
        for segment in self.segments:
            if segment.ledger_id in gone:
                raise MetadataConflict(
                    f"stream {self.name!r}: segment {segment.number} is not purged"
                )
        return replace(
            self,
            garbage=tuple(ledger for ledger in self.garbage if ledger not in gone),
        )


def _reaches(span: Span, position: Position) -> bool:
    """Whether a segment, or the last one of a run, holds `position`, or is behind it."""
    if span.last_number != position.segment:
        return span.last_number > position.segment
    return span.is_open or position.entry <= span.last_entry


def _next_multiple(number: int, step: int) -> int:
    return (number // step + 1) * step


def _continues(end: int, begin: int) -> bool:
    """Whether a segment may begin at sequence `begin` behind one that ends at `end`: at once, or
    behind the gap of a restore."""
    return begin == end or (begin > end and begin % SEQUENCES_PER_RESTORE == 0)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it is now. Records first_sequence..next_sequence-1 can be read; they are in
    `segments` on `ledgers`: merged segments share one."""

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
    ledgers: int

    @property
    def records(self) -> int:
        return self.next_sequence - self.first_sequence
