"""Idempotent producers: which records are new, and which producers' records a segment holds.

Pure. A producer numbers its records from 0 without gaps; an entry holds records of one producer,
and its header gives the number of the first (docs/formats.md). Must never admit a record twice, nor
skip one.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Final

from stream.core.entry.format import EntryHeader
from stream.errors import ProducerGap

_NONE: Final = 0
_SEVERAL: Final = -1


class ProducerLog:
    """The records that one producer has passed to one writer. Those before `next_sequence` were
    accepted."""

    __slots__ = ("name", "next_sequence", "producer_id", "stream")

    def __init__(self, stream: str, name: str, producer_id: int, last_sequence: int) -> None:
        assert producer_id > 0, "0 means no producer"
        self.stream = stream
        self.name = name
        self.producer_id = producer_id
        self.next_sequence = last_sequence + 1

    def known(self, sequence: int, count: int = 1) -> int:
        """Returns how many of the records from `sequence` on were accepted before.

        Raises ProducerGap if one before `sequence` was not, TypeError if it is not a whole number.
        """
        index(sequence)  # it is written into an entry's header long after this call
        if sequence > self.next_sequence or sequence < 0:
            raise ProducerGap(self.stream, self.name, sequence, self.next_sequence)
        return min(count, self.next_sequence - sequence)

    def taken(self, sequence: int, count: int) -> None:
        """Notes that the records from `sequence` on are in a batch now."""
        assert sequence == self.next_sequence, f"{sequence} taken, {self.next_sequence} is next"
        self.next_sequence += count


class ProducerSet:
    """The producers whose entries a segment may hold: none, one, or several.

    It may include producers of which the segment holds nothing in the end, but never lacks one: an
    entry may be stored in a later segment than the one it was made for, with fewer entries before
    it.
    """

    __slots__ = ("_seen",)

    def __init__(self, producer_ids: Iterable[int] = ()) -> None:
        self._seen = _NONE
        for producer_id in producer_ids:
            self.add(producer_id)

    def add(self, producer_id: int) -> bool:
        """Adds an entry of this producer (0: of none). Returns True if an entry of another producer
        may precede it."""
        seen = self._seen
        if producer_id and producer_id != seen:
            self._seen = _SEVERAL if seen else producer_id
        return seen not in (_NONE, producer_id)


class SegmentTally:
    """What the entries of a segment say about producers and event times."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._event_min: int | None = None
        self._event_max: int | None = None

    def add(self, header: EntryHeader) -> None:
        """Adds the next entry, in order."""
        if header.producer_id:
            self._last[header.producer_id] = header.producer_sequence + header.count - 1
        if header.has_event_times:
            low, high = header.event_time_min_ms, header.event_time_max_ms
            self._event_min = low if self._event_min is None else min(low, self._event_min)
            self._event_max = high if self._event_max is None else max(high, self._event_max)

    @property
    def producers(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a producer's number and the sequence of its last record."""
        return tuple(sorted(self._last.items()))

    @property
    def event_range_ms(self) -> tuple[int, int]:
        """Lowest and highest event time; (-1, -1) if there is none, or if any is before 1970."""
        if self._event_min is None or self._event_max is None or self._event_min < 0:
            return -1, -1
        return self._event_min, self._event_max
