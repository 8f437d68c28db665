"""Encodes which entries of a ledger a bookie holds, in the format of Apache's auditor, and computes
which entries it should hold.

Consecutive entries are a *sequence*; sequences of one size at one distance are a *group*, so that a
striped ledger costs 24 bytes and not 24 per entry. Layout: docs/wire.md, "List of entries". Must
never name an entry that was not put in.

Which entries of a closed ledger a bookie should hold, and which of them are missing, is computed by
ranges: a ledger may have a hundred million entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from ledger.core.metadata import LedgerMetadata, LedgerState
from ledger.errors import RemoteProtocolError

HEADER_BYTES = 64
_HEADER = struct.Struct(">ii")
_GROUP = struct.Struct(">qqii")
_VERSION = 0
_INT32_MAX = 2**31 - 1
_RANGES_MAX = 1_000_000
"""Ranges of entries that are taken from one bookie: a few bytes may describe any number of them."""


class EntriesHeld:
    """A set of entry ids, built from ascending ranges."""

    def __init__(self) -> None:
        self._groups: list[tuple[int, int, int, int]] = []
        """First start, last start, size and period of each closed group."""
        self._group: tuple[int, int, int, int] | None = None
        self._first = 0
        self._end = 0
        """The open sequence; it is empty only at the beginning."""

    @property
    def nbytes(self) -> int:
        """The largest number of bytes that `encode` can return."""
        return HEADER_BYTES + _GROUP.size * (len(self._groups) + 2)

    def add(self, first: int, last: int) -> None:
        """Adds the entries `first` to `last`; `first` must not be below that of any earlier
        call."""
        assert 0 <= first <= last
        if last < self._end:
            return
        if self._end and first <= self._end:
            if last - self._first < _INT32_MAX:
                self._end = last + 1
                return
            first = self._end  # the sequence is full: the rest begins another
        self._close_sequence()
        while last - first >= _INT32_MAX:
            self._first, self._end = first, first + _INT32_MAX
            self._close_sequence()
            first += _INT32_MAX
        self._first, self._end = first, last + 1

    def _close_sequence(self) -> None:
        if not self._end:
            return
        start, size = self._first, self._end - self._first
        if self._group is not None:
            first_start, last_start, group_size, period = self._group
            distance = start - last_start
            if size == group_size and distance <= _INT32_MAX and period in (0, distance):
                self._group = first_start, start, size, distance
                return
            self._groups.append(self._group)
        self._group = start, start, size, 0

    def encode(self) -> bytes:
        """Returns the bytes that Apache's client understands. Nothing may be added afterwards."""
        self._close_sequence()
        self._end = 0
        groups = [*self._groups, self._group] if self._group is not None else self._groups
        header = _HEADER.pack(_VERSION, len(groups)).ljust(HEADER_BYTES, b"\0")
        return header + b"".join(_GROUP.pack(*group) for group in groups)


def decode_entries_held(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the ranges (first, last) of entries in the order of their groups.

    Raises RemoteProtocolError, before the first range, if the bytes are not the output of `encode`
    or of Apache.
    """
    if len(data) < HEADER_BYTES:
        raise RemoteProtocolError(f"a list of entries of {len(data)} bytes has no whole header")
    version, count = _HEADER.unpack_from(data)
    if version != _VERSION or count < 0 or len(data) < HEADER_BYTES + count * _GROUP.size:
        raise RemoteProtocolError(
            f"a list of entries of version {version} and {len(data)} bytes for {count} groups"
        )
    groups = list(_GROUP.iter_unpack(data[HEADER_BYTES : HEADER_BYTES + count * _GROUP.size]))
    for first, last, size, period in groups:
        if first < 0 or last < first or size <= 0 or (period <= 0 and last != first):
            raise RemoteProtocolError(f"entries {first}..{last} by {size} with period {period}")
    return _ranges(groups)


def _ranges(groups: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int]]:
    for first, last, size, period in groups:
        for start in range(first, last + 1, period or 1):
            yield start, start + size - 1


Range = tuple[int, int]
"""First and last entry, both included."""


def fixed_part(metadata: LedgerMetadata) -> LedgerMetadata:
    """Returns, as a closed ledger, the part of it that no writer and no recovery can change: of an
    open ledger, everything before its last fragment, because that begins after the last confirmed
    entry."""
    if metadata.is_closed:
        return metadata
    last = metadata.fragments[-1].first_entry_id - 1
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=last)


def expected_ranges(metadata: LedgerMetadata, bookie: str) -> Iterator[Range]:
    """Yields the ranges that `bookie` should hold, in order and without overlaps. The ledger must
    be closed."""
    for number, fragment in enumerate(metadata.fragments):
        if bookie in fragment.bookies:
            yield from fragment_ranges(metadata, number, fragment.bookies.index(bookie))


def fragment_ranges(metadata: LedgerMetadata, number: int, index: int) -> Iterator[Range]:
    """Yields the ranges of fragment `number` that the bookie at `index` of its ensemble should
    hold, in order. The ledger must be closed."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    first, last = fragment_bounds(metadata, number)
    if first > last:
        return
    if size == quorum:
        yield first, last
        return
    # Of each `size` consecutive entries, those from `index - quorum + 1` to `index`, cyclically.
    begin = first - (first - (index - quorum + 1)) % size
    for at in range(begin, last + 1, size):
        if at + quorum > first:
            yield max(at, first), min(at + quorum - 1, last)


def fragment_bounds(metadata: LedgerMetadata, number: int) -> Range:
    """Returns the first and the last entry of fragment `number`; without entries the last one is
    the lesser. The ledger must be closed."""
    assert metadata.is_closed, f"ledger {metadata.ledger_id} is not closed"
    last = metadata.last_entry_id
    if number + 1 < len(metadata.fragments):
        last = min(last, metadata.fragments[number + 1].first_entry_id - 1)
    return metadata.fragments[number].first_entry_id, last


def missing_ranges(expected: Iterable[Range], held: Iterable[Range]) -> Iterator[Range]:
    """Yields what is in `expected` and not in `held`; both are in order, and `held` may overlap."""
    every = iter(held)
    have = next(every, None)
    for first, last in expected:
        at = first
        while at <= last:
            while have is not None and have[1] < at:
                have = next(every, None)
            if have is None or have[0] > last:
                yield at, last
                break
            if have[0] > at:
                yield at, have[0] - 1
            at = have[1] + 1


def lacks_entries(metadata: LedgerMetadata, bookie: str, held: bytes) -> bool:
    """Whether `bookie`, which holds the entries `held`, lacks one that it should hold; the ledger
    must be closed. Raises RemoteProtocolError if `held` is no list of entries."""
    expected = expected_ranges(metadata, bookie)
    ranges = sorted(islice(decode_entries_held(held), _RANGES_MAX))
    return next(missing_ranges(expected, ranges), None) is not None


def held_without_hole(ranges: Sequence[Range]) -> tuple[int, int]:
    """Returns how many entries from 0 on are in the sorted ranges, and how many are behind
    a hole."""
    entries, behind, end = 0, 0, -1
    for first, last in ranges:
        if first <= entries and not behind:
            entries = max(entries, last + 1)
        else:
            behind += max(0, last - max(first, end + 1) + 1)
        end = max(end, last)
    return entries, behind
