"""Idempotent producers: what is new, what was there before, and what a segment holds of whom.

Pure. A producer numbers its records from 0 without gaps; an entry holds records of one producer and
says in its header from which number on (docs/formats.md). Must never let a record in twice, nor
pass over one.
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
    """What one producer has handed to one writer. Sequences before `next_sequence` were taken."""

    __slots__ = ("name", "next_sequence", "producer_id", "stream")

    def __init__(self, stream: str, name: str, producer_id: int, last_sequence: int) -> None:
        assert producer_id > 0, "0 means no producer"
        self.stream = stream
        self.name = name
        self.producer_id = producer_id
        self.next_sequence = last_sequence + 1

    def known(self, sequence: int, count: int = 1) -> int:
        """How many of the records from `sequence` on were taken before.

        Raises ProducerGap if one before `sequence` was not, TypeError for no whole number.
        """
        index(sequence)  # it goes into an entry's header, long after whoever gave it is gone
        if sequence > self.next_sequence or sequence < 0:
            raise ProducerGap(self.stream, self.name, sequence, self.next_sequence)
        return min(count, self.next_sequence - sequence)

    def taken(self, sequence: int, count: int) -> None:
        """The records from `sequence` on are in a batch now."""
        assert sequence == self.next_sequence, f"{sequence} taken, {self.next_sequence} is next"
        self.next_sequence += count


class ProducerSet:
    """Whose entries a segment may hold: of no producer, of one, or of several.

    It may know of more than the segment holds in the end, never of less: an entry may come to lie
    in a later segment than the one it was made for, with fewer before it.
    """

    __slots__ = ("_seen",)

    def __init__(self, producer_ids: Iterable[int] = ()) -> None:
        self._seen = _NONE
        for producer_id in producer_ids:
            self.add(producer_id)

    def add(self, producer_id: int) -> bool:
        """An entry of this producer (0: of none) follows. True if one of another producer may be
        before it."""
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
        """The next entry, in order."""
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
        """Lowest and highest event time; (-1, -1) for none, or if there are any before 1970."""
        if self._event_min is None or self._event_max is None or self._event_min < 0:
            return -1, -1
        return self._event_min, self._event_max
