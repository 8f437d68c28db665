"""The errors of streams, beside those of `ledger.errors`.

They belong to the same tree, so that one attribute (`retry_is_safe`) answers whether a call may be
repeated. Messages name the stream, the numbers and the cure; never the bytes of a record. Errors
that carry a type of the core are defined beside it: `Truncated` in core/position.py, `CursorMoved`
in core/metadata/cursors.py, `DataWouldBeDropped` in core/retention.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledger.errors import FinalError, LedgerError, LedgerFenced, RetryableError


class RecordFormatError(FinalError):
    """The bytes of an entry are not a stream entry.

    `offset` is where in the payload; in the columns of a compressed entry, it is where the byte
    would be without compression.
    """

    def __init__(self, offset: int, cause: str) -> None:
        super().__init__(f"not a stream entry: {cause} (at byte {offset})")
        self.offset = offset
        self.cause = cause

    def __reduce__(self) -> tuple[type[RecordFormatError], tuple[int, str]]:
        return type(self), (self.offset, self.cause)


class CompressionUnavailable(FinalError):
    """The library for this compression is not installed."""


class NoSuchNamespace(FinalError):
    """The metadata store has no namespace of this name."""


class NamespaceExists(FinalError):
    """A namespace of this name already exists."""


class NamespaceNotEmpty(FinalError):
    """The namespace still has streams."""


class NoSuchStream(FinalError):
    """The namespace has no stream of this name, or the stream was deleted."""


class StreamExists(FinalError):
    """A stream of this name already exists."""


class IsPartitioned(FinalError):
    """The call needs a single stream, and this stream is partitioned."""

    def __init__(self, stream: str, partitions: object) -> None:
        super().__init__(
            f"stream {stream!r} has {partitions} partitions: name one of them ({stream}#0, ...), "
            f"or call a method for all of them (partitioned_writer, merged_reader, consumer, "
            f"partitioned_info, truncate_partitions)"
        )
        self.stream = stream
        self.partitions = partitions

    def __reduce__(self) -> tuple[type[IsPartitioned], tuple[str, object]]:
        return type(self), (self.stream, self.partitions)


class NotPartitioned(FinalError):
    """The call needs a partitioned stream, and this stream is a plain one."""


class PartitionsFailed(LedgerError):
    """An operation on several partitions failed on some of them; on the others it succeeded.

    `errors` holds what each failed partition raised, by number; `done` are the other partitions.
    """

    def __init__(
        self, stream: str, errors: Mapping[int, LedgerError], done: Sequence[int] = ()
    ) -> None:
        each = "; ".join(f"{stream}#{number}: {error}" for number, error in sorted(errors.items()))
        super().__init__(
            f"stream {stream!r}: {len(errors)} partitions failed, {len(done)} did not: {each}"
        )
        self.stream = stream
        self.errors = dict(errors)
        self.done = tuple(done)
        self.retry_is_safe = all(error.retry_is_safe for error in errors.values())

    def __reduce__(
        self,
    ) -> tuple[type[PartitionsFailed], tuple[str, dict[int, LedgerError], tuple[int, ...]]]:
        return type(self), (self.stream, self.errors, self.done)


class TooManyStreams(FinalError):
    """The namespace has as many streams as its `streams_max` allows."""


class NotInTrash(FinalError):
    """The trash has no deleted stream of this name: it was never deleted, was restored, or was
    purged."""


class StreamBusy(RetryableError):
    """The stream has an open segment: a writer may be active on it."""


class TakenOver(LedgerFenced):
    """Another writer took the stream over; this one may never append again.

    `our_epoch` is the epoch this writer held, `their_epoch` the one now in the metadata (or None
    if the metadata could not be read).
    """

    def __init__(self, stream: str, our_epoch: int, their_epoch: int | None) -> None:
        newer = "a newer epoch" if their_epoch is None else f"epoch {their_epoch}"
        super().__init__(
            f"stream {stream!r}: another writer took over ({newer}; this writer held epoch "
            f"{our_epoch}). Records not yet confirmed may or may not be in the stream; open a "
            f"new writer only if this process should be the writer"
        )
        self.stream = stream
        self.our_epoch = our_epoch
        self.their_epoch = their_epoch

    def __reduce__(self) -> tuple[type[TakenOver], tuple[str, int, int | None]]:
        return type(self), (self.stream, self.our_epoch, self.their_epoch)


class HandedOver(TakenOver):
    """This writer handed the stream over because another writer requested it.

    All records it had accepted are durable, none has an unknown outcome, and the record just
    refused is not in the stream.
    """

    def __init__(self, stream: str, our_epoch: int, their_epoch: int | None = None) -> None:
        super().__init__(stream, our_epoch, their_epoch)
        self.args = (
            f"stream {stream!r}: handed over to the writer that asked for it (this writer held "
            f"epoch {our_epoch}). All records confirmed or accepted before are durable; open a "
            f"new writer only if this process should be the writer",
        )


class EpochMismatch(FinalError):
    """The stream is at another epoch than the one at which the writer was to be opened.

    Another process has taken it over since, or this process itself did, in an attempt whose outcome
    it did not learn.
    """

    def __init__(self, stream: str, expected: int, epoch: int) -> None:
        super().__init__(
            f"stream {stream!r} is at epoch {epoch}, it was to be taken over only at epoch "
            f"{expected}. Find out which process writes it now; to take it over all the same, "
            f"name epoch {epoch}, or none"
        )
        self.stream = stream
        self.expected = expected
        self.epoch = epoch

    def __reduce__(self) -> tuple[type[EpochMismatch], tuple[str, int, int]]:
        return type(self), (self.stream, self.expected, self.epoch)


class ProducerGap(FinalError):
    """A producer skipped sequence numbers; nothing was appended."""

    def __init__(self, stream: str, producer: str, sequence: int, next_sequence: int) -> None:
        super().__init__(
            f"stream {stream!r}: producer {producer!r} gave sequence {sequence}, its next one is "
            f"{next_sequence}: records in between would be lost. Continue from {next_sequence}"
        )
        self.stream = stream
        self.producer = producer
        self.sequence = sequence
        self.next_sequence = next_sequence

    def __reduce__(self) -> tuple[type[ProducerGap], tuple[str, str, int, int]]:
        return type(self), (self.stream, self.producer, self.sequence, self.next_sequence)


class TooManyProducers(FinalError):
    """The stream remembers as many producers as it may; one must be forgotten first."""


class SequenceMismatch(FinalError):
    """A conditional append expected another sequence number; nothing was appended.

    `expected` is what the caller named, `next_sequence` what the next record of this writer gets.
    """

    def __init__(self, stream: str, expected: int, next_sequence: int) -> None:
        super().__init__(
            f"stream {stream!r}: expected to append record {expected}, the next one is "
            f"{next_sequence}. Read what was appended in between, decide again, and expect "
            f"{next_sequence}"
        )
        self.stream = stream
        self.expected = expected
        self.next_sequence = next_sequence

    def __reduce__(self) -> tuple[type[SequenceMismatch], tuple[str, int, int]]:
        return type(self), (self.stream, self.expected, self.next_sequence)


class ClockInDoubt(RetryableError):
    """The clock of this machine and others disagree by more than a day, so that nothing is deleted
    for its age. Nothing was changed."""


class CommitOutOfOrder(FinalError):
    """The batch does not follow the last one of this sink: it is older, it is of another query or
    another run of it, or batches between them are unknown."""


class NoSuchCursor(FinalError):
    """The stream has no cursor of this name, or it was deleted."""


class NoSuchGroup(FinalError):
    """The stream has no consumer group of this name."""


class GroupBusy(RetryableError):
    """The consumer group has active members."""


class MemberExists(FinalError):
    """Another living process is the member of this name in the consumer group."""


class PartitionLost(FinalError):
    """The partition now belongs to another member of the consumer group.

    What was delivered from it is handled again there, from the last committed position on.
    """

    def __init__(self, partition: str, epoch: int) -> None:
        super().__init__(
            f"partition {partition!r} was delivered at epoch {epoch} and belongs to another "
            f"member now, which handles again what was not committed; discard this work"
        )
        self.partition = partition
        self.epoch = epoch

    def __reduce__(self) -> tuple[type[PartitionLost], tuple[str, int]]:
        return type(self), (self.partition, self.epoch)
