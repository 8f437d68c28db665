"""The open segment of a stream writer, the writer's options and its statistics."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import InvalidArgument
from ledger.writing.writer import LedgerWriter
from stream.core.entry.format import EntryHeader, read_header
from stream.core.metadata.streams import SegmentEnd
from stream.core.producers import SegmentTally


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Limits and timeouts of one stream writer."""

    pending_bytes_max: int = 32 << 20
    """Bytes sealed and not yet confirmed; above this appends wait (or raise trio.WouldBlock)."""

    repair_timeout_s: float = 60.0
    """How long a writer whose ledger failed tries to replace it before the writer fails. Time in
    which the metadata store is unreachable does not count: appends wait for it."""

    receipt_wait_s: float = 0.2
    """How long a receipt waits, once its record is durable, for the bookies beyond the ack quorum.
    Appends without a receipt never wait for them."""

    def __post_init__(self) -> None:
        if self.pending_bytes_max < 1:
            raise InvalidArgument(
                f"pending_bytes_max is {self.pending_bytes_max}: no record could ever be taken; "
                "it must be at least 1"
            )


@dataclass(frozen=True, slots=True)
class StreamWriterStatistics:
    """Counters of a stream writer since it was opened."""

    epoch: int
    segment: int
    records: int
    entries: int
    bytes_pending: int
    rolls: int
    repairs: int


class OpenSegment:
    """A segment that this writer sends to. `is_published`: the metadata stores that it exists."""

    __slots__ = (
        "confirmed", "entries", "first_sequence", "first_time_ms", "is_published",
        "last_time_ms", "ledger", "nbytes", "number", "records", "since_ms", "tally",
    )  # fmt: skip

    def __init__(self, number: int, ledger: LedgerWriter, sequence: int) -> None:
        self.number = number
        self.ledger = ledger
        self.since_ms = 0  # when its first entry was sent, by our clock: its age counts from then
        self.first_sequence = sequence
        self.is_published = False
        self.confirmed = -1
        self.entries = 0
        self.records = 0
        self.nbytes = 0
        self.first_time_ms = -1
        self.last_time_ms = -1
        self.tally = SegmentTally()

    def count_header(self, payload: bytes) -> EntryHeader:
        """Adds the producer and the event times of an entry that was sent to the tally."""
        header = read_header(payload)
        self.tally.add(header)
        return header

    @property
    def end(self) -> SegmentEnd:
        """The end of the segment, provided that nothing more is sent and all of it is confirmed."""
        return SegmentEnd(
            self.entries - 1, self.records, self.nbytes, self.first_time_ms, self.last_time_ms,
            *self.tally.event_range_ms, self.tally.producers,
        )  # fmt: skip
