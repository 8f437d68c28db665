"""Streams: endless logs made of ledgers. Public names of the package."""

from stream.batch import Ticket
from stream.core.compression import Compression
from stream.core.entry_encoder import encode
from stream.core.metadata import Segment, SegmentState, StreamMetadata
from stream.core.policy import NamespaceMetadata
from stream.core.position import (
    EARLIEST,
    LATEST,
    Edge,
    FromSequence,
    FromTime,
    Position,
    Start,
    parse_start,
)
from stream.core.records import Record, RecordBatch, decode
from stream.errors import (
    CommitOutOfOrder,
    CompressionUnavailable,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchStream,
    RecordFormatError,
    StreamBusy,
    StreamExists,
    TakenOver,
    Truncated,
)
from stream.janitor import Janitor, SweepReport
from stream.namespace import (
    Namespace,
    StreamInfo,
    create_namespace,
    delete_namespace,
    list_namespaces,
)
from stream.open_segment import StreamWriterStatistics, WriterOptions
from stream.reader import StreamReader
from stream.writer import StreamWriter

__all__ = [
    "EARLIEST",
    "LATEST",
    "CommitOutOfOrder",
    "Compression",
    "CompressionUnavailable",
    "Edge",
    "FromSequence",
    "FromTime",
    "Janitor",
    "Namespace",
    "NamespaceExists",
    "NamespaceMetadata",
    "NamespaceNotEmpty",
    "NoSuchNamespace",
    "NoSuchStream",
    "Position",
    "Record",
    "RecordBatch",
    "RecordFormatError",
    "Segment",
    "SegmentState",
    "Start",
    "StreamBusy",
    "StreamExists",
    "StreamInfo",
    "StreamMetadata",
    "StreamReader",
    "StreamWriter",
    "StreamWriterStatistics",
    "SweepReport",
    "TakenOver",
    "Ticket",
    "Truncated",
    "WriterOptions",
    "create_namespace",
    "decode",
    "delete_namespace",
    "encode",
    "list_namespaces",
    "parse_start",
]
