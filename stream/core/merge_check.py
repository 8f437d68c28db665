"""What is copied into a merged ledger is what the stream says of its segments, entry by entry.

Pure. Must never let an entry pass that is missing, doubled, or another one.
"""

from __future__ import annotations

from ledger.errors import InvalidArgument
from stream.core.entry.compression import Buffer
from stream.core.entry.format import read_header
from stream.core.metadata.segments import Segment
from stream.core.segment_merging import MergePlan


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
