"""The older segments of a stream, in immutable pages, of which its document has a few in short.

A tree that grows at one end: a page of level 0 has segments, one of level n has pages of level n-1.
Only the newest pages of each level are in the document, so that it stays small however many
segments there are. Pure: what a decision needs of a page that was not read is requested by
`PagesNeeded`; the shell (store/pages.py) reads it and asks again. Must never give a segment twice,
nor one that was purged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from ledger.errors import MetadataCorrupt
from stream.core.metadata.segments import Run, Segment, Span

MARKS_MAX: Final = 64
"""Times of truncation that a stream remembers for segments in pages."""
_BUCKET_BITS: Final = 16

T = TypeVar("T")


class PagesNeeded(Exception):
    """A decision needs these pages, each in its folder, which were not read. Never leaves the
    shell."""

    def __init__(self, *needed: tuple[str, Run]) -> None:
        folder, run = needed[0]
        super().__init__(f"{folder}: the page of segments {run.number} to {run.last_number}")
        self.needed = needed


def answers(asks: Iterable[Callable[[], T]]) -> list[T]:
    """Returns what each of these decisions says. Raises PagesNeeded with the pages of all."""
    found: list[T] = []
    needed: list[tuple[str, Run]] = []
    for ask in asks:
        try:
            found.append(ask())
        except PagesNeeded as error:
            needed += error.needed
    if needed:
        raise PagesNeeded(*needed)
    return found


def page_name(run: Run) -> str:
    """Returns the name of a page below the folder of its stream.

    Writers that make the same page give it the same name, others never, because it contains the
    digest. Names are in folders by number, because a store lists a folder as a whole.
    """
    return f"{run.number >> _BUCKET_BITS}/{run.number}-{run.digest}"


class NewPage(NamedTuple):
    """A page that must be stored before a document names it."""

    run: Run
    data: bytes


class Replaced(NamedTuple):
    """Segments `first` to `last` of a page, or below it, as they were until `replaced_ms`, when
    they were merged: the ledgers that they were on, and the pages that list them there, are kept
    for readers that know no other. What else is below the page may be in use still."""

    replaced_ms: int
    first: int
    last: int
    run: Run

    def has(self, span: Span) -> bool:
        """Whether a segment is one of them, or a page has one."""
        return span.last_number >= self.first and span.number <= self.last


@dataclass(frozen=True, slots=True)
class Pages:
    """The older segments of one stream.

    `folder` has their nodes ("demo/clicks~1700000000000~7"), also after the stream got another
    name; it is empty if there never were any. `levels` are the newest pages of each level, level 0
    first: those of a higher level are older. Segments with a number below `first` were purged,
    though a page may have them still. `marks` are pairs (number, time): segments up to this number
    that no earlier mark covers were truncated at this time. `replaced` is what was merged lately,
    as it was before. `loaded` are pages that were read, by digest; `lost` are those that are
    missing, which count as empty; `made` are pages that must be stored before the stream is; `dead`
    are the names of pages that the next change removes.
    """

    folder: str = ""
    levels: tuple[tuple[Run, ...], ...] = ()
    first: int = 0
    marks: tuple[tuple[int, int], ...] = ()
    replaced: tuple[Replaced, ...] = ()
    loaded: Mapping[str, tuple[Span, ...]] = field(default_factory=dict, compare=False, repr=False)
    lost: AbstractSet[str] = field(default=frozenset(), compare=False, repr=False)
    made: tuple[NewPage, ...] = field(default=(), compare=False, repr=False)
    dead: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.levels)

    @property
    def roots(self) -> tuple[Run, ...]:
        """The pages that the document names, oldest first."""
        return tuple(run for level in reversed(self.levels) for run in level)

    def below(self, run: Run) -> tuple[Span, ...]:
        """Returns what a page has, without what was purged. Raises PagesNeeded."""
        spans = self.stored(run)
        if run.number < self.first:
            spans = tuple(span for span in spans if span.last_number >= self.first)
        if self.marks and run.number <= self.marks[-1][0]:
            spans = tuple(map(self._marked, spans))
        return spans

    def stored(self, run: Run) -> tuple[Span, ...]:
        """Returns what a page has, as it is stored. Raises PagesNeeded."""
        if run.digest in self.lost:
            return ()
        spans = self.loaded.get(run.digest)
        if spans is None:
            raise PagesNeeded((self.folder, run))
        return spans

    def _marked(self, span: Span) -> Span:
        """Returns the span with its time of truncation; a run with that of its first segment."""
        begin, end = self._mark_of(span.number), self._mark_of(span.last_number)
        if begin is None or end is None:
            return span
        return replace(span, dropped_ms=begin[1])

    def _mark_of(self, number: int) -> tuple[int, int] | None:
        return next((mark for mark in self.marks if number <= mark[0]), None)

    def spans(self) -> Iterator[Span]:
        """Yields all segments, oldest first, most of them in runs, none of which has segments that
        were purged, unless its page is lost. Raises PagesNeeded."""
        for root in self.roots:
            yield from self._whole(root)

    def _whole(self, span: Span) -> Iterator[Span]:
        if isinstance(span, Segment) or span.number >= self.first or span.digest in self.lost:
            yield self._marked(span)
            return
        for below in self.below(span):
            yield from self._whole(below)

    def split(self, span: Span, is_mixed: Callable[[Run], bool]) -> Iterator[Span]:
        """Yields the span, or what it consists of, as long as that is mixed."""
        if isinstance(span, Segment) or not is_mixed(span):
            yield span
            return
        for below in self.below(span):
            yield from self.split(below, is_mixed)

    def first_where(self, holds: Callable[[Span], bool]) -> Segment | None:
        """Returns the first segment for which `holds`; it must hold for a run that has one."""
        return next(self._where(self.roots, holds, 1), None)

    def last_where(self, holds: Callable[[Span], bool]) -> Segment | None:
        """Returns the last segment for which `holds`; it must hold for a run that has one."""
        return next(self._where(self.roots[::-1], holds, -1), None)

    def _where(
        self, spans: tuple[Span, ...], holds: Callable[[Span], bool], step: int
    ) -> Iterator[Segment]:
        for span in spans:
            if not holds(span):
                continue
            if isinstance(span, Segment):
                yield span
            else:
                yield from self._where(self.below(span)[::step], holds, step)

    def stored_since(
        self, number: int, goes_on: Callable[[Span], bool]
    ) -> Generator[Segment, None, None]:
        """Yields the segments from this number on as they are stored, also purged ones, as long as
        it `goes_on`, which must hold for a run whose first segments are wanted. Raises
        PagesNeeded."""
        stack: list[Span] = list(self.roots[::-1])
        while stack:
            span = stack.pop()
            if span.last_number < number:
                continue
            if not goes_on(span):
                return
            if isinstance(span, Segment):
                yield span
            else:
                stack += self.stored(span)[::-1]

    def was_replaced(self, ledger_id: int) -> bool:
        """Whether segments that were merged lately were on this ledger. Raises PagesNeeded."""
        for one in self.replaced:
            stack: list[Span] = [one.run]
            while stack:
                span = stack.pop()
                if not one.has(span):
                    continue
                if isinstance(span, Run):
                    if span.is_on(ledger_id):
                        stack += self.stored(span)
                elif span.ledger_id == ledger_id:
                    return True
        return False

    # Changes

    def without_replaced(self) -> tuple[list[Segment], Pages]:
        """Takes out what was merged first: nobody needs it as it was before. Returns these
        segments as they were: no other segment is on their ledgers. Raises MetadataCorrupt if one
        is; PagesNeeded."""
        return self._without(self.replaced[0], self.replaced[0].last)

    @property
    def has_purged(self) -> bool:
        """Whether segments are kept as they were before a merge that were purged since."""
        return any(one.first < self.first for one in self.replaced)

    def without_purged(self, count: int) -> tuple[list[Segment], Pages]:
        """As `without_replaced`, of what was purged since: merges of about `count` segments at
        most, or one. A ledger that others of them were on, too, is left to those."""
        taken: list[Segment] = []
        pages = self
        while pages.has_purged and len(taken) < count:
            oldest = min(pages.replaced, key=attrgetter("first"))
            some, pages = pages._without(oldest, self.first - 1)
            if some and pages.was_replaced(shared := some[-1].ledger_id):
                some = [segment for segment in some if segment.ledger_id != shared]
            taken += some
        return taken, pages

    def _without(self, one: Replaced, through: int) -> tuple[list[Segment], Pages]:
        """Takes out segments up to number `through` of what one merge has replaced."""
        part = one._replace(last=min(one.last, through))
        taken: list[Segment] = []
        dead: list[str] = []
        for span in self._all((one.run,), part.has):
            if isinstance(span, Segment):
                taken.append(span)
            elif span.digest not in self.lost and min(span.last_number, one.last) <= part.last:
                dead.append(page_name(span))
        ledgers = {segment.ledger_id for segment in taken}
        for span in self._all(self.roots, lambda s: part.has(s) and s.last_number >= self.first):
            if span.ledger_id in ledgers if isinstance(span, Segment) else page_name(span) in dead:
                raise MetadataCorrupt(
                    f"{self.folder}: what segments {part.first} to {part.last} were in before a "
                    f"merge is to be deleted, but segments {span.number} to {span.last_number} are "
                    "in it. Nothing is deleted. Cure: put the node of the stream back from a "
                    "backup of the metadata"
                )
        left = () if part.last == one.last else (one._replace(first=through + 1),)
        at = self.replaced.index(one)
        replaced = (*self.replaced[:at], *left, *self.replaced[at + 1 :])
        return taken, replace(self, replaced=replaced, dead=(*self.dead, *dead))

    def _all(self, roots: Sequence[Span], is_wanted: Callable[[Span], bool]) -> list[Span]:
        """Returns these spans and what is below them, in order, as it is stored, without what is
        not wanted. Raises PagesNeeded with the pages of all."""
        found: list[Span] = []
        needed: list[tuple[str, Run]] = []
        stack: list[Span] = list(roots[::-1])
        while stack:
            span = stack.pop()
            if not is_wanted(span):
                continue
            found.append(span)
            if isinstance(span, Run):
                try:
                    stack += self.stored(span)[::-1]
                except PagesNeeded as error:
                    needed += error.needed
        if needed:
            raise PagesNeeded(*needed)
        return found

    def marked(self, number: int, now_ms: int) -> Pages:
        """Returns the pages after segments up to `number` were truncated; earlier marks stay.

        Too many marks are merged where that makes the least difference, to the later time.
        """
        if self.marks and number <= self.marks[-1][0]:
            return self
        marks = [*self.marks, (number, now_ms)]
        if self.marks and self.marks[-1][1] == now_ms:
            del marks[-2]
        if len(marks) > MARKS_MAX:
            gaps = [abs(later[1] - earlier[1]) for earlier, later in pairwise(marks)]
            least = gaps.index(min(gaps))
            earlier, later = marks[least : least + 2]
            marks[least : least + 2] = [(later[0], max(earlier[1], later[1]))]
        return replace(self, marks=tuple(marks))

    def unmarked(self, through: int) -> Pages:
        """Returns the pages after only segments up to number `through` are truncated still."""
        kept = [mark for mark in self.marks if mark[0] <= through]
        if len(kept) < len(self.marks) and through > (kept[-1][0] if kept else 0):
            kept.append((through, self.marks[len(kept)][1]))
        return replace(self, marks=tuple(kept))

    def without_first(self, through: int, count: int) -> tuple[list[Segment], Pages]:
        """Takes out the oldest segments up to number `through`, about `count` at most.

        Whole pages at a time, except for the last one. Raises PagesNeeded.
        """
        taken: list[Segment] = []
        visited: list[Run] = []
        first = self.first
        stack: list[Span] = list(self.roots[::-1])
        while stack and stack[-1].number <= through and len(taken) < count:
            span = stack.pop()
            if isinstance(span, Segment):
                taken.append(span)
                first = span.number + 1
            elif span.digest not in self.lost:
                visited.append(span)
                stack += self.below(span)[::-1]
            elif span.last_number <= through:
                first = span.last_number + 1
            else:
                break
        levels = [tuple(run for run in level if run.last_number >= first) for level in self.levels]
        while levels and not levels[-1]:
            levels.pop()
        dead = [page_name(run) for run in visited if run.last_number < first]
        return taken, replace(
            self,
            levels=tuple(levels),
            first=first,
            marks=tuple(mark for mark in self.marks if mark[0] >= first),
            dead=(*self.dead, *dead),
        )

    def with_run(self, level: int, run: Run) -> Pages:
        """Returns the pages with a new one of this level. If it is above level 0, the pages that it
        consists of are in it from now on."""
        levels = list(self.levels) + [()] * (level + 1 - len(self.levels))
        levels[level] = (*levels[level], run)
        if level:
            levels[level - 1] = tuple(
                one for one in levels[level - 1] if one.number > run.last_number
            )
        return replace(self, levels=tuple(levels))


NO_PAGES: Final = Pages()
