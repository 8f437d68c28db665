"""Which small segments of a stream are merged into one ledger, and the stream afterwards.

`explain_merging` decides, from the metadata alone; the janitor executes the plan that operators are
shown (shell: retention/segment_merging.py). Only segments in pages are merged: the newest are few.
What a ledger holds of the stream moves as a whole, so that nothing needs the ledger any more. Must
never change a position, a sequence or a time. A page that is needed is asked for by PagesNeeded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ledger.core.steady_clock import CLOCK_OFF_MS
from ledger.errors import MetadataConflict
from ledger.units import duration_text, size_text
from stream.core.merge_limits import SMALL_SHARE, HeldLedger, MergeLimits
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.page_format import rewritten
from stream.core.metadata.pages import PagesNeeded, answers
from stream.core.metadata.segments import Run, Segment, Span
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position

LEDGERS_MIN: Final = 8
"""Neighbouring small ledgers that are worth a merge."""
LEDGERS_MAX: Final = 1000
"""Ledgers that one merge replaces: the next change of the stream makes them garbage."""
SEGMENTS_MAX: Final = 8192
"""Segments on one ledger: a merge writes the pages that list them again."""
SPAN_MS: Final = 7 * 86_400_000
"""Time from the oldest to the newest record of one ledger: it is deleted with its last segment."""
RETENTION_SHARE: Final = 8
"""A merged ledger has at most this part of the bytes and of the time that retention keeps."""
AGE_MS: Final = 300_000
"""How old the newest record must be: what is fresh is being read, and committed again."""
LOOKED_MAX: Final = 2048
"""Ledgers that one look at a stream looks at, about; the next look continues there."""
REPLACED_MAX: Final = 64
"""Merges whose replaced ledgers a stream still keeps; another one waits."""
_SOON_SHARE: Final = 8
"""What retention drops within this part of its time or bytes is not merged."""


@dataclass(frozen=True, slots=True)
class MergeScope:
    """Where a janitor looks: from segment `since` on, at `looked_max` ledgers, about, not at those
    that it must `avoid`; it can copy `nbytes_max` at a time."""

    since: int = 0
    nbytes_max: int | None = None
    avoid: AbstractSet[int] = frozenset()
    looked_max: int | None = None


WHOLE_STREAM: Final = MergeScope()


def limits_of(policy: NamespaceMetadata, nbytes_max: int | None = None) -> MergeLimits:
    """Returns what a merged ledger may have under this policy, if `nbytes_max` can be copied."""
    nbytes, span_ms = policy.roll_bytes, SPAN_MS
    if nbytes_max is not None:
        nbytes = min(nbytes, nbytes_max)
    if policy.retention_bytes is not None:
        nbytes = min(nbytes, policy.retention_bytes // RETENTION_SHARE)
    if policy.retention_ms is not None:
        span_ms = min(span_ms, policy.retention_ms // RETENTION_SHARE)
    return MergeLimits(max(1, nbytes), SEGMENTS_MAX, max(1, span_ms), policy.roll_bytes)


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
    merged before segment `since` if nothing but time passes and the policy stays; with
    `is_settled` nothing at all before the pages of the stream change."""

    plan: MergePlan | None
    reason: str
    since: int = 0
    is_settled: bool = False


def explain_merging(
    stream: StreamMetadata,
    policy: NamespaceMetadata,
    now_ms: int,
    scope: MergeScope = WHOLE_STREAM,
) -> MergeOutlook:
    """Returns what of the stream is merged now, and why not more.

    Merged are LEDGERS_MIN to LEDGERS_MAX small neighbours that together fit into a ledger, none of
    which is larger than the others together: so a byte is copied a logarithmic number of times. The
    oldest come first. Sealed live segments only, whose records are AGE_MS old and which retention
    does not drop soon. `scope.since` is that of an earlier outlook. Raises PagesNeeded.
    """
    if not stream.pages:
        return MergeOutlook(
            None, "its segments are few: the newest are not merged", is_settled=True
        )
    if len(stream.pages.replaced) >= REPLACED_MAX:
        return MergeOutlook(
            None,
            f"the ledgers of {len(stream.pages.replaced)} merges wait to be deleted first",
            scope.since,
        )
    search = _Search(stream, policy, now_ms, scope)
    chosen = search.run()
    if chosen is None:
        return MergeOutlook(None, search.why_not(), search.since, search.is_settled)
    plan = MergePlan(_segments_at(stream, chosen[0].first, chosen[-1].last), len(chosen))
    return MergeOutlook(
        plan,
        f"segments {plan.first} to {plan.last} on {plan.ledgers} ledgers, "
        f"{size_text(plan.nbytes)} together, become one",
        scope.since,
    )


class _Search:
    """A search for neighbours that can be merged."""

    def __init__(
        self, stream: StreamMetadata, policy: NamespaceMetadata, now_ms: int, scope: MergeScope
    ) -> None:
        self.since = scope.since
        self.is_settled = False
        self._stream = stream
        self._policy = policy
        self._limits = limits_of(policy, scope.nbytes_max)
        self._avoid = scope.avoid
        self._looked_max = LOOKED_MAX if scope.looked_max is None else scope.looked_max
        self._now_ms = now_ms
        self._left = sum(span.nbytes for span in stream.spans())
        """Bytes of what was not looked at yet."""
        self._small = self._young = self._soon = 0
        self._unseen = 0
        """The first segment that was not looked at; 0 if all were."""
        self._first_young = 0
        """The first segment of those that were young, with the neighbours before them: they may be
        merged together later."""

    def run(self) -> Sequence[HeldLedger] | None:
        """Returns neighbours that can be merged; None if there are none, or none were found before
        much was looked at."""
        neighbours: list[HeldLedger] = []
        for looked, (behind, ledger) in enumerate(self._ledgers()):
            if ledger is not None:
                neighbours.append(ledger)
                if len(neighbours) < LEDGERS_MAX + LEDGERS_MIN:
                    continue
            if (chosen := _choose(neighbours, self._limits)) is not None:
                return chosen
            if neighbours:
                if self._first_young:
                    self._first_young = min(self._first_young, neighbours[0].first)
                neighbours = []
            if looked >= self._looked_max:
                self._unseen = behind
                self.since = min(behind, self._first_young or behind)
                return None
        if (chosen := _choose(neighbours, self._limits)) is None:
            self.is_settled = not self._first_young
            self.since = min(
                neighbours[0].first if neighbours else self._stream.pages.roots[-1].last_number + 1,
                self._first_young or self._stream.next_segment,
            )
        return chosen

    def why_not(self) -> str:
        limits = self._limits
        small, most = size_text(limits.small_bytes), size_text(limits.nbytes)
        rest = f"; segments from {self._unseen} on were not looked at" if self._unseen else ""
        if not self._small:
            return (
                f"few or none of the older ledgers are below {small} (1/{SMALL_SHARE} of {most})"
                f"{rest}"
            )
        words = f"{self._small} ledgers are below {small}"
        if self._young:
            words += f", {self._young} of them with records younger than {duration_text(AGE_MS)}"
        if self._soon:
            words += f", {self._soon} of them near the end of their retention"
        return (
            f"{words}: fewer than {LEDGERS_MIN} neighbours of similar size can be merged to "
            f"{most} of {duration_text(limits.span_ms)}{rest}"
        )

    def _ledgers(self) -> Iterator[tuple[int, HeldLedger | None]]:
        """Yields the ledgers that can be merged, oldest first, and None in place of others; with
        each the number of the segment behind it."""
        one: HeldLedger | None = None
        for span in self._spans():
            if span.last_number < self.since:
                continue
            is_one = isinstance(span, Segment) or span.is_one_ledger
            if one is not None and span.ledger_first == one.ledger_id:
                if is_one:
                    one = one.with_next(span, self._left)
                    continue
                one = replace(one, is_whole=False)
            if one is not None:
                yield one.last + 1, self._judged(one)
                one = None
            if not is_one:
                yield span.last_number + 1, None
                continue
            is_readable = Position(span.number, 0, 0) >= self._stream.truncated_to
            one = HeldLedger(
                span.ledger_first, span.number, span.last_number, span.count, span.nbytes,
                span.created_ms, span.newest_ms, self._left,
                is_whole=span.ledgers == 1 and is_readable,
            )  # fmt: skip
        if one is not None:
            yield one.last + 1, self._judged(one)

    def _spans(self) -> Iterator[Span]:
        """Yields segments, and runs that are not looked into. The search begins again with pages
        that were read: it requests those of many ledgers at once."""
        needed: list[tuple[str, Run]] = []
        ledgers = 0
        stack = list(self._stream.pages.spans())[::-1]
        while stack and ledgers < min(LEDGERS_MAX, self._looked_max):
            span = stack.pop()
            if isinstance(span, Run) and self._is_looked_into(span):
                try:
                    stack += self._stream.pages.below(span)[::-1]
                    continue
                except PagesNeeded as error:
                    needed += error.needed
                    ledgers += span.ledgers
            self._left -= span.nbytes
            if not needed:
                yield span
        if needed:
            raise PagesNeeded(*needed)

    def _is_looked_into(self, run: Run) -> bool:
        """Whether a ledger in this run may be one that can be merged: if not nearly all are large,
        all young, or all near their end."""
        if run.last_number < self.since:
            return False
        if Position(run.number, 0, 0) < self._stream.truncated_to:
            return self._stream.is_live(run)
        if run.is_one_ledger or self._limits.has_few_small(run):
            return False
        is_young = self._is_fresh(run.created_ms)
        is_soon = self._is_dropped_soon(run.newest_ms, self._left - run.nbytes)
        if is_young or is_soon:
            self._note(run.ledgers, run.number, is_young, is_soon and not is_young)
            return False
        return True

    def _judged(self, ledger: HeldLedger) -> HeldLedger | None:
        if not ledger.is_whole or ledger.ledger_id in self._avoid:
            return None
        if not self._limits.is_small(ledger):
            return None
        is_young = self._is_fresh(ledger.newest_ms)
        is_soon = self._is_dropped_soon(ledger.newest_ms, ledger.behind)
        self._note(1, ledger.first, is_young, is_soon and not is_young)
        return None if is_young or is_soon else ledger

    def _note(self, ledgers: int, first: int, is_young: bool, is_soon: bool) -> None:
        self._small += ledgers
        self._young += ledgers * is_young
        self._soon += ledgers * is_soon
        if is_young and not self._first_young:
            self._first_young = first

    def _is_fresh(self, time_ms: int) -> bool:
        """Whether this time was just now, by clocks that may differ; a later one is wrong."""
        return -CLOCK_OFF_MS < self._now_ms - time_ms < AGE_MS

    def _is_dropped_soon(self, newest_ms: int, behind: int) -> bool:
        keeps_ms, keeps_bytes = self._policy.retention_ms, self._policy.retention_bytes
        is_old = keeps_ms is not None and (
            self._now_ms - newest_ms >= keeps_ms - keeps_ms // _SOON_SHARE
        )
        return is_old or (
            keeps_bytes is not None and behind >= keeps_bytes - keeps_bytes // _SOON_SHARE
        )


def _choose(ledgers: Sequence[HeldLedger], limits: MergeLimits) -> Sequence[HeldLedger] | None:
    """Returns the first neighbours that are to be merged."""
    shares = [limits.share(ledger) for ledger in ledgers]
    for begin in range(len(ledgers) - LEDGERS_MIN + 1):
        end = _end_of_window(ledgers, begin, limits)
        while end - begin >= LEDGERS_MIN:
            window = shares[begin:end]
            if 2 * max(window) <= sum(window):
                return ledgers[begin:end]
            end = begin + window.index(max(window))
    return None


def _end_of_window(ledgers: Sequence[HeldLedger], begin: int, limits: MergeLimits) -> int:
    """Returns the end of the most neighbours that fit into one ledger."""
    nbytes = count = 0
    oldest_ms, newest_ms = ledgers[begin].oldest_ms, ledgers[begin].newest_ms
    last = min(len(ledgers), begin + LEDGERS_MAX)
    for end in range(begin, last):
        ledger = ledgers[end]
        nbytes, count = nbytes + ledger.nbytes, count + ledger.count
        oldest_ms, newest_ms = min(oldest_ms, ledger.oldest_ms), max(newest_ms, ledger.newest_ms)
        if nbytes > limits.nbytes or count > limits.segments:
            return end
        if newest_ms - oldest_ms > limits.span_ms:
            return end
    return last


def _segments_at(stream: StreamMetadata, first: int, last: int) -> tuple[Segment, ...]:
    """Returns the segments with these numbers, as they are stored. Raises PagesNeeded."""

    def found(span: Span) -> list[Segment]:
        if span.last_number < first or span.number > last:
            return []
        return [span] if isinstance(span, Segment) else found_in(stream.pages.stored(span))

    def found_in(spans: Sequence[Span]) -> list[Segment]:
        return [one for part in answers(partial(found, span) for span in spans) for one in part]

    return tuple(found_in(stream.pages.roots))


def is_current(stream: StreamMetadata, plan: MergePlan) -> bool:
    """Whether the segments of the plan are in the stream still, on the same ledgers. Raises
    PagesNeeded."""
    is_there = plan.first >= stream.pages.first and not stream.is_deleted
    return is_there and _segments_at(stream, plan.first, plan.last) == plan.segments


def merged(stream: StreamMetadata, plan: MergePlan, ledger_id: int, now_ms: int) -> StreamMetadata:
    """Returns the stream with the segments of the plan on this ledger, which has their entries one
    behind the other. The ledgers that they were on are kept until `trash.without_replaced`.

    Raises MetadataConflict if one of them was purged or merged meanwhile; PagesNeeded.
    """
    if not is_current(stream, plan):
        raise MetadataConflict(
            f"stream {stream.name!r}: segments {plan.first} to {plan.last} were purged, or merged "
            "by another client"
        )
    if len(stream.pages.replaced) >= REPLACED_MAX:
        raise MetadataConflict(
            f"stream {stream.name!r} was merged by others: {len(stream.pages.replaced)} pages are "
            f"replaced, limit {REPLACED_MAX}"
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
