"""Which small segments of a stream are merged into one ledger, and the stream afterwards.

`explain_merging` decides, from the metadata alone; the janitor executes the plan that operators are
shown (shell: retention/segment_merging.py). Only segments in pages are merged: the newest are few.
What a ledger holds of the stream moves as a whole, so that nothing needs the ledger any more. Must
never change a position, a sequence or a time. A page that is needed is asked for by PagesNeeded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ledger.errors import InvalidArgument, MetadataConflict
from ledger.units import duration_text, size_text
from stream.core.entry.compression import Buffer
from stream.core.entry.format import read_header
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.page_format import rewritten
from stream.core.metadata.segments import Run, Segment, Span
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position

LEDGERS_MIN: Final = 8
"""Neighbouring small ledgers that are worth a merge."""
LEDGERS_MAX: Final = 1000
"""Ledgers that one merge replaces: the next change of the stream makes them garbage."""
SEGMENTS_MAX: Final = 8192
"""Segments on one ledger: a merge writes the pages that list them again."""
SMALL_SHARE: Final = 8
"""A ledger is small if it has less than this part of `roll_bytes`, and of SEGMENTS_MAX."""
AGE_MS: Final = 300_000
"""How old the newest record must be: what is fresh is being read, and committed again."""
LOOKED_MAX: Final = 4096
"""Ledgers that one look at a stream looks at, about, before it goes on next time."""
REPLACED_MAX: Final = 64
"""Merges whose replaced ledgers a stream still keeps; another one waits."""
_SOON_SHARE: Final = 8
"""What retention drops within this part of its time or bytes is not merged."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Segments that become one ledger; they are on `ledgers` ledgers now."""

    segments: tuple[Segment, ...]
    ledgers: int

    @property
    def first(self) -> int:
        return self.segments[0].number

    @property
    def last(self) -> int:
        return self.segments[-1].number

    @property
    def entries(self) -> int:
        return sum(segment.last_entry + 1 for segment in self.segments)

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class MergeOutlook:
    """What is merged next, if anything, and the reason as text, with numbers. Nothing will be
    merged before segment `since` if nothing but time passes and the policy stays."""

    plan: MergePlan | None
    reason: str
    since: int = 0


@dataclass(frozen=True, slots=True)
class _Ledger:
    """What a ledger holds of the stream: segments `first` to `last`. `is_whole`: nothing of it is
    elsewhere, and all of it can be read. `behind` are the bytes behind it."""

    ledger_id: int
    first: int
    last: int
    count: int
    nbytes: int
    newest_ms: int
    behind: int
    is_whole: bool

    def with_next(self, span: Span, behind: int) -> _Ledger:
        return replace(
            self, last=span.last_number, count=self.count + span.count,
            nbytes=self.nbytes + span.nbytes, newest_ms=max(self.newest_ms, span.newest_ms),
            behind=behind,
        )  # fmt: skip


def explain_merging(
    stream: StreamMetadata, policy: NamespaceMetadata, now_ms: int, since: int = 0
) -> MergeOutlook:
    """Returns what of the stream is merged now, and why not more.

    Merged are LEDGERS_MIN to LEDGERS_MAX small neighbours that together fit into a ledger, none of
    which is larger than the others together: so a byte is copied a logarithmic number of times. The
    oldest come first. Sealed live segments only, whose records are AGE_MS old and which retention
    does not drop soon. `since` is that of an earlier outlook. Raises PagesNeeded.
    """
    if not stream.pages:
        return MergeOutlook(None, "its segments are few: the newest are not merged")
    if len(stream.pages.replaced) >= REPLACED_MAX:
        return MergeOutlook(
            None, f"the ledgers of {len(stream.pages.replaced)} merges wait to be deleted first"
        )
    search = _Search(stream, policy, now_ms, since)
    chosen = search.run()
    if chosen is None:
        return MergeOutlook(None, search.why_not(), search.since)
    plan = MergePlan(_segments_at(stream, chosen[0].first, chosen[-1].last), len(chosen))
    return MergeOutlook(
        plan,
        f"segments {plan.first} to {plan.last} on {plan.ledgers} ledgers, "
        f"{size_text(plan.nbytes)} together, become one",
        since,
    )


class _Search:
    """A search for neighbours that can be merged, from segment `since` on."""

    def __init__(
        self, stream: StreamMetadata, policy: NamespaceMetadata, now_ms: int, since: int
    ) -> None:
        self.since = since
        self._stream = stream
        self._policy = policy
        self._now_ms = now_ms
        self._left = sum(span.nbytes for span in stream.spans())
        """Bytes of what was not looked at yet."""
        self._small = self._young = self._soon = 0
        self._first_young = 0

    def run(self) -> Sequence[_Ledger] | None:
        """Returns neighbours that can be merged; None if there are none, or none were found before
        much was looked at."""
        neighbours: list[_Ledger] = []
        begun = self.since
        for looked, ledger in enumerate(self._ledgers()):
            if ledger is not None:
                neighbours.append(ledger)
                if len(neighbours) < LEDGERS_MAX + LEDGERS_MIN:
                    continue
            if (chosen := _choose(neighbours, self._policy)) is not None:
                return chosen
            if neighbours:
                begun, neighbours = neighbours[-1].last + 1, []
            if looked >= LOOKED_MAX:
                self.since = begun
                return None
        if (chosen := _choose(neighbours, self._policy)) is None:
            self.since = min(
                neighbours[0].first if neighbours else self._stream.segments[0].number,
                self._first_young or self._stream.next_segment,
            )
        return chosen

    def why_not(self) -> str:
        limit = size_text(self._policy.roll_bytes // SMALL_SHARE)
        if not self._small:
            return f"no ledger of older segments is below {limit} (roll_bytes / {SMALL_SHARE})"
        words = f"{self._small} ledgers are below {limit}"
        if self._young:
            words += f", {self._young} of them with records younger than {duration_text(AGE_MS)}"
        if self._soon:
            words += f", {self._soon} of them near the end of their retention"
        return f"{words}: fewer than {LEDGERS_MIN} neighbours of similar size can be merged"

    def _ledgers(self) -> Iterator[_Ledger | None]:
        """Yields the ledgers that can be merged, oldest first, and None in place of others."""
        one: _Ledger | None = None
        for whole in self._stream.pages.spans():
            for span in self._stream.pages.split(whole, self._is_looked_into):
                self._left -= span.nbytes
                if span.last_number < self.since:
                    continue
                is_one = isinstance(span, Segment) or span.is_one_ledger
                if one is not None and span.ledger_first == one.ledger_id:
                    if is_one:
                        one = one.with_next(span, self._left)
                        continue
                    one = replace(one, is_whole=False)
                if one is not None:
                    yield self._judged(one)
                    one = None
                if not is_one:
                    yield None
                    continue
                is_readable = Position(span.number, 0, 0) >= self._stream.truncated_to
                one = _Ledger(
                    span.ledger_first, span.number, span.last_number, span.count, span.nbytes,
                    span.newest_ms, self._left, is_whole=span.ledgers == 1 and is_readable,
                )  # fmt: skip
        if one is not None:
            yield self._judged(one)

    def _is_looked_into(self, run: Run) -> bool:
        """Whether a ledger in this run may be one that can be merged: if they are small on average,
        and neither all young nor all near their end."""
        if run.last_number < self.since:
            return False
        if Position(run.number, 0, 0) < self._stream.truncated_to:
            return self._stream.is_live(run)
        if run.is_one_ledger or _are_large(run.nbytes, run.count, run.ledgers, self._policy):
            return False
        is_young = self._now_ms - run.created_ms < AGE_MS
        is_soon = self._is_dropped_soon(run.newest_ms, self._left - run.nbytes)
        if is_young or is_soon:
            self._note(run.ledgers, run.number, is_young, is_soon and not is_young)
            return False
        return True

    def _judged(self, ledger: _Ledger) -> _Ledger | None:
        if not ledger.is_whole or _are_large(ledger.nbytes, ledger.count, 1, self._policy):
            return None
        is_young = self._now_ms - ledger.newest_ms < AGE_MS
        is_soon = self._is_dropped_soon(ledger.newest_ms, ledger.behind)
        self._note(1, ledger.first, is_young, is_soon and not is_young)
        return None if is_young or is_soon else ledger

    def _note(self, ledgers: int, first: int, is_young: bool, is_soon: bool) -> None:
        self._small += ledgers
        self._young += ledgers * is_young
        self._soon += ledgers * is_soon
        if is_young and not self._first_young:
            self._first_young = first

    def _is_dropped_soon(self, newest_ms: int, behind: int) -> bool:
        keeps_ms, keeps_bytes = self._policy.retention_ms, self._policy.retention_bytes
        is_old = keeps_ms is not None and (
            self._now_ms - newest_ms >= keeps_ms - keeps_ms // _SOON_SHARE
        )
        return is_old or (
            keeps_bytes is not None and behind >= keeps_bytes - keeps_bytes // _SOON_SHARE
        )


def _choose(ledgers: Sequence[_Ledger], policy: NamespaceMetadata) -> Sequence[_Ledger] | None:
    """Returns the first neighbours that are to be merged."""
    for begin in range(len(ledgers) - LEDGERS_MIN + 1):
        nbytes = count = 0
        end = begin
        for ledger in ledgers[begin : begin + LEDGERS_MAX]:
            nbytes, count = nbytes + ledger.nbytes, count + ledger.count
            if nbytes > policy.roll_bytes or count > SEGMENTS_MAX:
                break
            end += 1
        window = ledgers[begin:end]
        shares = [
            max(ledger.nbytes / policy.roll_bytes, ledger.count / SEGMENTS_MAX) for ledger in window
        ]
        if len(window) >= LEDGERS_MIN and 2 * max(shares) <= sum(shares):
            return window
    return None


def _are_large(nbytes: int, segments: int, ledgers: int, policy: NamespaceMetadata) -> bool:
    return (
        nbytes * SMALL_SHARE >= ledgers * policy.roll_bytes
        or segments * SMALL_SHARE > ledgers * SEGMENTS_MAX
    )


def _segments_at(stream: StreamMetadata, first: int, last: int) -> tuple[Segment, ...]:
    return tuple(stream.pages.stored_since(first, lambda span: span.number <= last))


class MergeCheck:
    """Checks, entry by entry, that what is copied is what the segments of a plan are."""

    def __init__(self, plan: MergePlan) -> None:
        self._left = iter(plan.segments)
        self._segment: Segment | None = None
        self._entries = self._records = self._nbytes = 0

    def add(self, payload: Buffer) -> None:
        """Takes the next entry. Raises InvalidArgument if it is not that of the segment;
        RecordFormatError."""
        header = read_header(payload)
        if self._segment is None:
            self._segment = next(self._left, None)
        segment = self._segment
        if segment is None:
            raise InvalidArgument("there are more entries than the segments have")
        if segment.sequence_of(header) != segment.first_sequence + self._records:
            raise InvalidArgument(
                f"segment {segment.number}: entry {self._entries} begins at sequence "
                f"{segment.sequence_of(header)}, {self._records} records are before it and the "
                f"segment begins at sequence {segment.first_sequence}"
            )
        self._entries += 1
        self._records += header.count
        self._nbytes += len(payload)
        if self._entries > segment.last_entry:
            found, wanted = (self._records, self._nbytes), (segment.records, segment.nbytes)
            if found != wanted:
                raise InvalidArgument(
                    f"segment {segment.number} has {found[0]} records and {found[1]} bytes, "
                    f"{wanted[0]} and {wanted[1]} by its stream"
                )
            self._segment, self._entries, self._records, self._nbytes = None, 0, 0, 0

    def end(self) -> None:
        """Checks that nothing is missing. Raises InvalidArgument."""
        segment = self._segment or next(self._left, None)
        if segment is not None:
            raise InvalidArgument(
                f"segment {segment.number} has {self._entries} entries, {segment.last_entry + 1} "
                "by its stream"
            )


def merged(stream: StreamMetadata, plan: MergePlan, ledger_id: int, now_ms: int) -> StreamMetadata:
    """Returns the stream with the segments of the plan on this ledger, which has their entries one
    behind the other. The ledgers that they were on are kept until `trash.without_replaced`.

    Raises MetadataConflict if one of them was purged or merged meanwhile; PagesNeeded.
    """
    is_same = plan.first >= stream.pages.first and not stream.is_deleted
    if not is_same or _segments_at(stream, plan.first, plan.last) != plan.segments:
        raise MetadataConflict(
            f"stream {stream.name!r}: segments {plan.first} to {plan.last} were purged, or merged "
            "by another client"
        )
    moved: dict[int, Segment] = {}
    entry = nbytes = 0
    for segment in plan.segments:
        made_on = segment.made_on if segment.is_merged else segment.ledger_id
        moved[segment.number] = replace(
            segment, ledger_id=ledger_id, made_on=made_on, base_entry=entry, base_bytes=nbytes
        )
        entry, nbytes = entry + segment.last_entry + 1, nbytes + segment.nbytes
    return replace(stream, pages=rewritten(stream.pages, moved, now_ms))
