"""A sparse index of a segment's entries, which finds the record with a sequence or a byte offset.

A search requests headers of entries, one after the other. They are added to the index, so that the
searches of consecutive micro-batches cost a header or two. Results are exact to the record. A
search must never request an entry that is in the index, nor continue without end.
"""

from __future__ import annotations

import enum
from bisect import bisect_right, insort
from dataclasses import dataclass
from operator import attrgetter

from ledger.errors import MetadataCorrupt

INDEXED_ENTRIES_MAX = 128
"""Entries in the index of one segment. The lowest are dropped first: a query moves forward."""


class SearchKey(enum.Enum):
    """The value by which a record is searched."""

    SEQUENCE = "sequence"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class IndexedEntry:
    """An entry: the sequence of its first record, its number of records, and its bytes.

    `bytes_before` are stored before the entry in its segment, `nbytes` are its own.
    """

    entry: int
    first_sequence: int
    count: int
    bytes_before: int
    nbytes: int
    append_time_ms: int

    def bytes_at(self, slot: int) -> int:
        """Returns the bytes before the record in this slot; records share an entry's equally."""
        return self.bytes_before + self.nbytes * slot // self.count

    def slot_of(self, key: SearchKey, target: int) -> int:
        """Returns the slot of the last record that begins at or before `target`.

        `target` must be in this entry.
        """
        if key is SearchKey.SEQUENCE:
            return target - self.first_sequence
        return ((target - self.bytes_before + 1) * self.count - 1) // self.nbytes


@dataclass(frozen=True, slots=True)
class SegmentOffset:
    """The offset of a record in a segment, or the end after its last record."""

    entry: int
    slot: int
    sequence: int
    nbytes: int


class SparseIndex:
    """The indexed entries of one segment, whose records are numbered from `first_sequence`."""

    def __init__(self, first_sequence: int) -> None:
        self._known: list[IndexedEntry] = []
        self._begin = SegmentOffset(0, 0, first_sequence, 0)
        self._end = self._begin

    @property
    def end(self) -> SegmentOffset:
        """The offset after the last record that is known to be confirmed."""
        return self._end

    def end_at(self, entries: int, next_sequence: int, nbytes: int) -> None:
        """Sets the end of the confirmed entries. It must never move back.

        Raises MetadataCorrupt if more entries were confirmed before.
        """
        end = SegmentOffset(entries, 0, next_sequence, nbytes)
        if entries < self._end.entry:
            raise MetadataCorrupt(
                f"a segment ends at entry {entries} and sequence {next_sequence}, but "
                f"{self._end.entry} entries to sequence {self._end.sequence} were confirmed"
            )
        self._end = end

    def add(self, entry: IndexedEntry) -> None:
        """Adds an entry, which is confirmed, to the index."""
        index = bisect_right(self._known, entry.entry, key=attrgetter("entry"))
        if not index or self._known[index - 1].entry != entry.entry:
            insort(self._known, entry, key=attrgetter("entry"))
            if len(self._known) > INDEXED_ENTRIES_MAX:
                del self._known[0]
        behind = _behind(entry)
        if behind.entry > self._end.entry:
            self._end = behind

    def at(self, entry: int) -> IndexedEntry | None:
        """Returns this entry, or None if it is not in the index."""
        index = bisect_right(self._known, entry, key=attrgetter("entry"))
        found = self._known[index - 1] if index else None
        return found if found is not None and found.entry == entry else None

    def find(self, key: SearchKey, target: int, tries: int = 0) -> SegmentOffset | int:
        """Returns the last offset whose sequence, or bytes before it, do not exceed `target`.

        `target` must be between begin and end. If the result is an int, this entry must be added
        before the next try; `tries` counts these results. The search interpolates and bisects in
        turn, so that entries of very different sizes cost only a few more tries.
        """
        low, high = self._between(key, target)
        if isinstance(low, IndexedEntry):
            slot = low.slot_of(key, target)
            return SegmentOffset(low.entry, slot, low.first_sequence + slot, low.bytes_at(slot))
        value, limit = _value(low, key), _value(high, key)
        if target == value or low.entry >= high.entry:
            return low
        if target == limit:
            return high
        if not value < target < limit:
            raise MetadataCorrupt(
                f"{key.value} {target} is not in entries {low.entry}..{high.entry - 1}, which "
                f"have {value}..{limit - 1}"
            )
        entries = high.entry - low.entry
        if tries % 2:
            return low.entry + entries // 2
        guess = low.entry + (target - value) * entries // (limit - value)
        return min(guess, high.entry - 1)

    def _between(
        self, key: SearchKey, target: int
    ) -> tuple[IndexedEntry | SegmentOffset, SegmentOffset]:
        """Returns the indexed entry that holds `target`, if any, and its end.

        Otherwise returns the last known offset at or before `target` and the first one after it.
        """
        value_of = _first_sequence if key is SearchKey.SEQUENCE else _bytes_before
        index = bisect_right(self._known, target, key=value_of)
        low, high = self._begin, self._end
        if index:
            before = self._known[index - 1]
            low = _behind(before)
            if target < _value(low, key):
                return before, low
        if index < len(self._known):
            behind = self._known[index]
            high = SegmentOffset(behind.entry, 0, behind.first_sequence, behind.bytes_before)
        return low, high


_first_sequence = attrgetter("first_sequence")
_bytes_before = attrgetter("bytes_before")


def _behind(entry: IndexedEntry) -> SegmentOffset:
    return SegmentOffset(
        entry.entry + 1,
        0,
        entry.first_sequence + entry.count,
        entry.bytes_before + entry.nbytes,
    )


def _value(offset: SegmentOffset, key: SearchKey) -> int:
    return offset.sequence if key is SearchKey.SEQUENCE else offset.nbytes
