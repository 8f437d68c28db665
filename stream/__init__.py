"""Streams: unbounded logs of records, made of ledgers. The public names of the package.

- namespace.py: the facade: streams, writers, readers, consumers, policy
- scope.py: client, store and name of a namespace
- takeover.py: takes a stream over, and makes and ends its ledgers
- verify.py: verifies the copies of a stream
- repair.py: mends a stream whose newest ledger was closed at a wrong end
- adoption.py: appends the records of ledgers that a restore has lost
- canary.py: appends and verifies forever
- errors.py: errors of streams
- core/: decisions, without I/O
- store/: documents in the metadata store
- writing/: writers of one stream
- reading/: readers
- consuming/: cursors and consumer groups
- partitions/: partitioned streams
- retention/: policies, trash, janitor
- sinks/: batches of ledgers, committed exactly once
- bridge/, aio/, blocking/: the same for asyncio and for threads
- cli/: the command ledgerstream
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ledgerstream_entry import require_own_packages

if TYPE_CHECKING:
    from trio import WouldBlock

    from ledger.core.copies import CopyFault, CopyState, CopyVerdict, LedgerReport
    from stream.canary import Canary, CanaryOptions, CanaryRound
    from stream.consuming.consumer import Consumer
    from stream.consuming.cursor import Cursor
    from stream.consuming.delivery import Delivery, RecordDelivery
    from stream.consuming.groups import GroupInfo, GroupPartition
    from stream.core.entry.compression import Compression
    from stream.core.entry.encoder import encode
    from stream.core.entry.records import NULL, Record, RecordBatch, decode
    from stream.core.metadata.cursors import CursorMetadata, CursorMoved
    from stream.core.metadata.namespaces import NamespaceMetadata
    from stream.core.metadata.partitioned import PartitionedStream
    from stream.core.metadata.streams import (
        ProducerState,
        Segment,
        SegmentState,
        StreamInfo,
        StreamMetadata,
    )
    from stream.core.position import (
        EARLIEST,
        LATEST,
        Edge,
        FromCursor,
        FromEnd,
        FromEventTime,
        FromSequence,
        FromTime,
        Position,
        PositionLost,
        Start,
        Truncated,
        parse_start,
    )
    from stream.core.receipt import Receipt, ReceiptAck
    from stream.core.retention import DataWouldBeDropped, RetentionPlan, SegmentPlan, Verdict
    from stream.core.routing import partition_of
    from stream.errors import (
        CommitOutOfOrder,
        CompressionUnavailable,
        EpochMismatch,
        GroupBusy,
        HandedOver,
        IsPartitioned,
        MemberExists,
        NamespaceExists,
        NamespaceNotEmpty,
        NoSuchCursor,
        NoSuchGroup,
        NoSuchNamespace,
        NoSuchStream,
        NotInTrash,
        NotPartitioned,
        PartitionLost,
        PartitionsFailed,
        ProducerGap,
        RecordFormatError,
        SequenceMismatch,
        StreamBusy,
        StreamExists,
        TakenOver,
        TooManyProducers,
        TooManyStreams,
    )
    from stream.namespace import Namespace, create_namespace, delete_namespace, list_namespaces
    from stream.partitions.partitions import PartitionedInfo
    from stream.partitions.ticket import PartitionPosition, PartitionTicket
    from stream.partitions.writer import PartitionedWriter, PartitionedWriterStatistics
    from stream.reading.backward import BackwardBatches
    from stream.reading.lag import CursorLag
    from stream.reading.merged_feeds import OrderBy
    from stream.reading.merged_reader import MergedBatch, MergedReader, MergedRecord
    from stream.reading.reader import OnTruncated, StreamReader
    from stream.retention.janitor import Janitor, SweepReport
    from stream.retention.policies import NamespaceSettings
    from stream.retention.segment_merger import MergeReport
    from stream.retention.trash import TrashEntry
    from stream.verify import SegmentReport, StreamReport, VerifyProgress
    from stream.writing.batch import Ticket
    from stream.writing.open_segment import StreamWriterStatistics, WriterOptions
    from stream.writing.producer import Producer
    from stream.writing.receipt import ReceiptTicket
    from stream.writing.writer import StreamWriter

__distribution__ = "ledgerstream"
require_own_packages("ledger")

__all__ = [
    "EARLIEST",
    "LATEST",
    "NULL",
    "BackwardBatches",
    "Canary",
    "CanaryOptions",
    "CanaryRound",
    "CommitOutOfOrder",
    "Compression",
    "CompressionUnavailable",
    "Consumer",
    "CopyFault",
    "CopyState",
    "CopyVerdict",
    "Cursor",
    "CursorLag",
    "CursorMetadata",
    "CursorMoved",
    "DataWouldBeDropped",
    "Delivery",
    "Edge",
    "EpochMismatch",
    "FromCursor",
    "FromEnd",
    "FromEventTime",
    "FromSequence",
    "FromTime",
    "GroupBusy",
    "GroupInfo",
    "GroupPartition",
    "HandedOver",
    "IsPartitioned",
    "Janitor",
    "LedgerReport",
    "MemberExists",
    "MergeReport",
    "MergedBatch",
    "MergedReader",
    "MergedRecord",
    "Namespace",
    "NamespaceExists",
    "NamespaceMetadata",
    "NamespaceNotEmpty",
    "NamespaceSettings",
    "NoSuchCursor",
    "NoSuchGroup",
    "NoSuchNamespace",
    "NoSuchStream",
    "NotInTrash",
    "NotPartitioned",
    "OnTruncated",
    "OrderBy",
    "PartitionLost",
    "PartitionPosition",
    "PartitionTicket",
    "PartitionedInfo",
    "PartitionedStream",
    "PartitionedWriter",
    "PartitionedWriterStatistics",
    "PartitionsFailed",
    "Position",
    "PositionLost",
    "Producer",
    "ProducerGap",
    "ProducerState",
    "Receipt",
    "ReceiptAck",
    "ReceiptTicket",
    "Record",
    "RecordBatch",
    "RecordDelivery",
    "RecordFormatError",
    "RetentionPlan",
    "Segment",
    "SegmentPlan",
    "SegmentReport",
    "SegmentState",
    "SequenceMismatch",
    "Start",
    "StreamBusy",
    "StreamExists",
    "StreamInfo",
    "StreamMetadata",
    "StreamReader",
    "StreamReport",
    "StreamWriter",
    "StreamWriterStatistics",
    "SweepReport",
    "TakenOver",
    "Ticket",
    "TooManyProducers",
    "TooManyStreams",
    "TrashEntry",
    "Truncated",
    "Verdict",
    "VerifyProgress",
    "WouldBlock",
    "WriterOptions",
    "create_namespace",
    "decode",
    "delete_namespace",
    "encode",
    "list_namespaces",
    "parse_start",
    "partition_of",
]

_HOMES = {
    "stream.reading.backward": "BackwardBatches",
    "stream.writing.batch": "Ticket",
    "stream.consuming.consumer": "Consumer",
    "stream.consuming.delivery": "Delivery RecordDelivery",
    "stream.core.entry.compression": "Compression",
    "stream.core.metadata.cursors": "CursorMetadata CursorMoved",
    "stream.core.entry.encoder": "encode",
    "stream.core.metadata.streams": "StreamInfo ProducerState Segment SegmentState StreamMetadata",
    "stream.core.metadata.partitioned": "PartitionedStream",
    "stream.core.metadata.namespaces": "NamespaceMetadata",
    "stream.core.position": (
        "EARLIEST Edge FromCursor FromEnd FromEventTime FromSequence FromTime LATEST "
        "Position PositionLost Start Truncated parse_start"
    ),
    "stream.core.entry.records": "NULL Record RecordBatch decode",
    "stream.core.retention": "DataWouldBeDropped RetentionPlan SegmentPlan Verdict",
    "stream.core.routing": "partition_of",
    "stream.consuming.cursor": "Cursor",
    "stream.errors": (
        "CommitOutOfOrder CompressionUnavailable "
        "EpochMismatch GroupBusy HandedOver IsPartitioned MemberExists NamespaceExists "
        "NamespaceNotEmpty NoSuchCursor NoSuchGroup NoSuchNamespace NoSuchStream "
        "NotInTrash NotPartitioned PartitionLost PartitionsFailed ProducerGap "
        "RecordFormatError SequenceMismatch StreamBusy StreamExists TakenOver "
        "TooManyProducers TooManyStreams"
    ),
    "stream.consuming.groups": "GroupInfo GroupPartition",
    "stream.retention.janitor": "Janitor SweepReport",
    "stream.retention.segment_merger": "MergeReport",
    "stream.reading.lag": "CursorLag",
    "stream.reading.merged_feeds": "OrderBy",
    "stream.reading.merged_reader": "MergedBatch MergedReader MergedRecord",
    "stream.namespace": "Namespace create_namespace delete_namespace list_namespaces",
    "stream.writing.open_segment": "StreamWriterStatistics WriterOptions",
    "stream.partitions.ticket": "PartitionPosition PartitionTicket",
    "stream.partitions.writer": "PartitionedWriter PartitionedWriterStatistics",
    "stream.partitions.partitions": "PartitionedInfo",
    "stream.retention.policies": "NamespaceSettings",
    "stream.writing.producer": "Producer",
    "stream.reading.reader": "OnTruncated StreamReader",
    "stream.retention.trash": "TrashEntry",
    "stream.writing.writer": "StreamWriter",
    "trio": "WouldBlock",
    "ledger.core.copies": "CopyFault CopyState CopyVerdict LedgerReport",
    "stream.canary": "Canary CanaryOptions CanaryRound",
    "stream.core.receipt": "Receipt ReceiptAck",
    "stream.writing.receipt": "ReceiptTicket",
    "stream.verify": "SegmentReport StreamReport VerifyProgress",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Imports a name on first use, so that a program pays only for what it uses."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
