"""Streams: endless logs made of ledgers. Public names of the package."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ledgerstream_entry import require_own_packages

if TYPE_CHECKING:
    from trio import WouldBlock

    from ledger.core.copies import CopyFault, CopyState, CopyVerdict, LedgerReport
    from stream.backward import BackwardBatches
    from stream.batch import Ticket
    from stream.canary import Canary, CanaryOptions, CanaryRound
    from stream.consumer import Consumer
    from stream.core.compression import Compression
    from stream.core.cursor_metadata import CursorMetadata
    from stream.core.entry_encoder import encode
    from stream.core.metadata import ProducerState, Segment, SegmentState, StreamMetadata
    from stream.core.partitioned import PartitionedStream
    from stream.core.policy import NamespaceMetadata
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
        Start,
        parse_start,
    )
    from stream.core.receipt import Receipt, ReceiptAck
    from stream.core.records import Record, RecordBatch, decode
    from stream.core.retention import RetentionPlan, SegmentPlan, Verdict
    from stream.core.routing import partition_of
    from stream.cursor import Cursor
    from stream.delivery import Delivery, RecordDelivery
    from stream.errors import (
        CommitOutOfOrder,
        CompressionUnavailable,
        CursorMoved,
        DataWouldBeDropped,
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
        Truncated,
    )
    from stream.groups import GroupInfo, GroupPartition
    from stream.janitor import Janitor, SweepReport
    from stream.lag import CursorLag
    from stream.merged_feeds import OrderBy
    from stream.merged_reader import MergedBatch, MergedReader, MergedRecord
    from stream.namespace import (
        Namespace,
        StreamInfo,
        create_namespace,
        delete_namespace,
        list_namespaces,
    )
    from stream.open_segment import StreamWriterStatistics, WriterOptions
    from stream.partitioned_writer import (
        PartitionedWriter,
        PartitionedWriterStatistics,
        PartitionPosition,
        PartitionTicket,
    )
    from stream.partitions import PartitionedInfo
    from stream.policies import NamespaceSettings
    from stream.producer import Producer
    from stream.reader import OnTruncated, StreamReader
    from stream.receipt import ReceiptTicket
    from stream.trash import TrashEntry
    from stream.verify import SegmentReport, StreamReport, VerifyProgress
    from stream.writer import StreamWriter

__distribution__ = "ledgerstream"
require_own_packages("ledger")

__all__ = [
    "EARLIEST",
    "LATEST",
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
    "stream.backward": "BackwardBatches",
    "stream.batch": "Ticket",
    "stream.consumer": "Consumer",
    "stream.delivery": "Delivery RecordDelivery",
    "stream.core.compression": "Compression",
    "stream.core.cursor_metadata": "CursorMetadata",
    "stream.core.entry_encoder": "encode",
    "stream.core.metadata": "ProducerState Segment SegmentState StreamMetadata",
    "stream.core.partitioned": "PartitionedStream",
    "stream.core.policy": "NamespaceMetadata",
    "stream.core.position": (
        "EARLIEST Edge FromCursor FromEnd FromEventTime FromSequence FromTime LATEST "
        "Position Start parse_start"
    ),
    "stream.core.records": "Record RecordBatch decode",
    "stream.core.retention": "RetentionPlan SegmentPlan Verdict",
    "stream.core.routing": "partition_of",
    "stream.cursor": "Cursor",
    "stream.errors": (
        "CommitOutOfOrder CompressionUnavailable CursorMoved DataWouldBeDropped "
        "EpochMismatch GroupBusy HandedOver IsPartitioned MemberExists NamespaceExists "
        "NamespaceNotEmpty NoSuchCursor NoSuchGroup NoSuchNamespace NoSuchStream "
        "NotInTrash NotPartitioned PartitionLost PartitionsFailed ProducerGap "
        "RecordFormatError SequenceMismatch StreamBusy StreamExists TakenOver "
        "TooManyProducers TooManyStreams Truncated"
    ),
    "stream.groups": "GroupInfo GroupPartition",
    "stream.janitor": "Janitor SweepReport",
    "stream.lag": "CursorLag",
    "stream.merged_feeds": "OrderBy",
    "stream.merged_reader": "MergedBatch MergedReader MergedRecord",
    "stream.namespace": "Namespace StreamInfo create_namespace delete_namespace list_namespaces",
    "stream.open_segment": "StreamWriterStatistics WriterOptions",
    "stream.partitioned_writer": (
        "PartitionPosition PartitionTicket PartitionedWriter PartitionedWriterStatistics"
    ),
    "stream.partitions": "PartitionedInfo",
    "stream.policies": "NamespaceSettings",
    "stream.producer": "Producer",
    "stream.reader": "OnTruncated StreamReader",
    "stream.trash": "TrashEntry",
    "stream.writer": "StreamWriter",
    "trio": "WouldBlock",
    "ledger.core.copies": "CopyFault CopyState CopyVerdict LedgerReport",
    "stream.canary": "Canary CanaryOptions CanaryRound",
    "stream.core.receipt": "Receipt ReceiptAck",
    "stream.receipt": "ReceiptTicket",
    "stream.verify": "SegmentReport StreamReport VerifyProgress",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Imports on first use: a command or client pays only for what it touches."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
