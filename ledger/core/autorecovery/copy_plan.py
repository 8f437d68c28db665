"""Which entry of a ledger is read next from which bookie, to be copied, and why some cannot be.

A copy that one bookie lacks, or has with other bytes, is looked for at the next one that should
have it. What a bookie says about a single entry is evidence; an entry is given up only with
evidence of all its holders, and the reason names each of them. Must never take silence for absence:
a reason with an unverified copy is a doubt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ledger.core.availability import Range
from ledger.core.copies import DOUBTFUL, BadCopy, CopyState
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import stripe_step, write_set

FAILURES_MAX = 1000
"""Runs of entries that a report lists; further ones are only counted."""
_CAREFUL_ENTRIES = 32
"""After a batch read that found not even its first entry, this number of entries is read from
another bookie, or one by one."""
_FAILED_PER_STEP = 1000
_WORDS = {
    CopyState.MISSING: "missing on {}",
    CopyState.CORRUPT: "corrupt on {}",
    CopyState.UNREADABLE: "{} cannot read it",
    CopyState.UNREACHABLE: "{} does not answer",
    CopyState.UNKNOWN: "{} may have lost it",
}

Holders = Callable[[int], Sequence[str]]
Choose = Callable[[Sequence[str]], str | None]
"""Returns one of the bookies, or None if none of them may be asked now."""


class Read(NamedTuple):
    """A request: entries first..last from `source`. `is_single`: each by itself. `avoided`: bookies
    whose batch reads did not find the first entry."""

    source: str
    first: int
    last: int
    is_single: bool
    avoided: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """Entries that no source could give. With striping not all ids between first and last are
    concerned: `entries` counts those that are. `is_doubt`: a copy may exist all the same. Details
    in `reason` are those of the first entry."""

    first_entry: int
    last_entry: int
    entries: int
    is_doubt: bool
    reason: str


class _Span(NamedTuple):
    first: int
    last: int
    avoided: frozenset[str] = frozenset()


class CopyPlan:
    """The entries of `ranges` that are still to be read, and the evidence about them.

    Args:
        metadata: of the ledger, whose fragments say who holds what.
        target: the bookie that lacks the entries; it is never a source.
        ranges: ascending, without overlaps.
        holders: returns the sources of an entry; called once for each fragment and stripe. None:
            the write set of the entry.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        target: str,
        ranges: Sequence[Range],
        holders: Holders | None = None,
    ) -> None:
        self.entries_failed = 0
        self.is_interrupted = False
        """`next_read` returned None to let other tasks run."""
        self._metadata = metadata
        self._target = target
        self._ranges = ranges
        self._next_range = 0
        self._holders = holders or self._write_set
        self._step = stripe_step(metadata.ensemble_size, metadata.write_quorum)
        self._sources: dict[tuple[int, int], tuple[str, ...]] = {}
        self._again: deque[_Span] = deque()
        self._evidence: dict[int, dict[str, BadCopy]] = {}
        """Of entries for which some source failed, until they are read or given up."""
        self._gone: dict[str, BadCopy] = {}
        """Bookies that give nothing of this ledger."""
        self._runs: dict[object, CopyFailure] = {}
        self._failures: list[tuple[object, CopyFailure]] = []

    @property
    def is_done(self) -> bool:
        """Whether no entry is left to be read, apart from those in flight."""
        return not self._again and self._next_range == len(self._ranges)

    # ---- what is read next

    def next_read(self, choose: Choose, count_max: int) -> Read | None:
        """Returns the next request, for up to `count_max` entries; None if there is none, or none
        that `choose` has a bookie for, or if it must be called again (`is_interrupted`)."""
        failed_max = self.entries_failed + _FAILED_PER_STEP
        self.is_interrupted = False
        while (span := self._next_span()) is not None:
            last = self._cut(span)
            sources = self._sources_of(span.first)
            left = self._left_of(span.first, sources)
            if not left:
                last = self._fail(span.first, last, sources)
                self._put_back(span._replace(first=last + 1))
                if self.entries_failed >= failed_max:
                    self.is_interrupted = True
                    return None
                continue
            fresh = [source for source in left if source not in span.avoided]
            source = choose(fresh or left)
            if source is None:
                self._put_back(span)
                if self._left_of(span.first, sources) != left:
                    continue  # `choose` gave a bookie up
                return None
            last = min(last, span.first + count_max - 1)
            self._put_back(span._replace(first=last + 1))
            is_single = not fresh or self._step > 1
            return Read(source, span.first, last, is_single, span.avoided)
        return None

    def _next_span(self) -> _Span | None:
        if self._again:
            return self._again.popleft()
        if self._next_range == len(self._ranges):
            return None
        first, last = self._ranges[self._next_range]
        self._next_range += 1
        return _Span(first, last)

    def _put_back(self, span: _Span) -> None:
        if span.first <= span.last:
            self._again.appendleft(span)

    def _cut(self, span: _Span) -> int:
        """Returns the last entry of the span that has the same sources as the first."""
        if self._step > 1:
            return span.first
        fragments = self._metadata.fragments
        after = self._metadata.fragment_index_of(span.first) + 1
        if after < len(fragments):
            return min(span.last, fragments[after].first_entry_id - 1)
        return span.last

    def _sources_of(self, entry_id: int) -> tuple[str, ...]:
        key = self._metadata.fragment_index_of(entry_id), entry_id % self._step
        sources = self._sources.get(key)
        if sources is None:
            every = dict.fromkeys(self._holders(entry_id))
            every.pop(self._target, None)
            sources = self._sources[key] = tuple(every)
        return sources

    def _write_set(self, entry_id: int) -> list[str]:
        metadata = self._metadata
        bookies = metadata.fragment_of(entry_id).bookies
        indices = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        return [bookies[index] for index in indices]

    def _left_of(self, entry_id: int, sources: Sequence[str]) -> list[str]:
        """Returns the sources that may still have the entry."""
        evidence = self._evidence.get(entry_id, {})
        return [one for one in sources if one not in self._gone and one not in evidence]

    # ---- what was answered

    def found(self, first: int, last: int) -> None:
        """Entries were read and are valid: the evidence against other copies is of no use."""
        if self._evidence:
            for entry_id in [one for one in self._evidence if first <= one <= last]:
                del self._evidence[entry_id]

    def again(self, first: int, last: int) -> None:
        """Entries are to be read again: nothing was learned about them."""
        self._put_back(_Span(first, last))

    def not_in_batch(self, read: Read) -> None:
        """A batch read did not return even its first entry."""
        careful = min(read.last, read.first + _CAREFUL_ENTRIES - 1)
        self._put_back(_Span(careful + 1, read.last))
        self._put_back(_Span(read.first, careful, read.avoided | {read.source}))

    def bad(self, source: str, entry_id: int, copy: BadCopy) -> None:
        """The source has no valid copy of the entry."""
        self._evidence.setdefault(entry_id, {})[source] = copy
        self._put_back(_Span(entry_id, entry_id, frozenset((source,))))

    def gone(self, source: str, copy: BadCopy) -> None:
        """The source gives no entry of this ledger any more."""
        self._gone[source] = copy

    # ---- what cannot be copied

    def _fail(self, first: int, last: int, sources: Sequence[str]) -> int:
        """Gives up the first entry, and the others up to `last` if no bookie is left for any of
        them; returns the last one."""
        evidence = self._evidence.pop(first, {})
        if evidence:
            last = first
        copies = {one: evidence.get(one) or self._gone[one] for one in sources}
        self.entries_failed += last - first + 1
        key = tuple((bookie, copy.state) for bookie, copy in copies.items())
        run = self._runs.get(key)
        if run is not None and 0 < first - run.last_entry <= self._step:
            self._runs[key] = _joined(run, last, last - first + 1)
            return last
        if run is not None and len(self._failures) < FAILURES_MAX:
            self._failures.append((key, run))
        is_doubt = any(copy.state in DOUBTFUL for copy in copies.values())
        self._runs[key] = CopyFailure(first, last, last - first + 1, is_doubt, _reason(copies))
        return last

    def failures(self) -> tuple[CopyFailure, ...]:
        """Returns the entries that were given up, in order, up to FAILURES_MAX runs of them."""
        joined: list[CopyFailure] = []
        last_of: dict[object, int] = {}
        runs = [*self._failures, *self._runs.items()]
        # Reads end in any order, so that neighbours may have been given up one after the other.
        for key, one in sorted(runs, key=lambda run: run[1].first_entry):
            at = last_of.get(key, -1)
            if at >= 0 and 0 < one.first_entry - joined[at].last_entry <= self._step:
                joined[at] = _joined(joined[at], one.last_entry, one.entries)
            else:
                last_of[key] = len(joined)
                joined.append(one)
        return tuple(joined[:FAILURES_MAX])


def _joined(run: CopyFailure, last: int, entries: int) -> CopyFailure:
    return replace(run, last_entry=last, entries=run.entries + entries)


def _reason(copies: dict[str, BadCopy]) -> str:
    if not copies:
        return "no other bookie is to have a copy"
    missing = [bookie for bookie, copy in copies.items() if copy.state is CopyState.MISSING]
    parts = [f"missing on {', '.join(missing)}"] if missing else []
    parts += [
        f"{_WORDS[copy.state].format(bookie)} ({copy.detail})"
        for bookie, copy in copies.items()
        if copy.state is not CopyState.MISSING
    ]
    return "; ".join(parts)
