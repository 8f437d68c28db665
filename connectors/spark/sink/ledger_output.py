"""LedgerOutput: the driver writes rows to new ledgers of one stream, one after the other as they
fill.

Used for rows that tasks returned to the driver (result_ledgers.py), and for merged ones
(sort_merge.py). The ledgers are in no stream until the batch is committed.
"""

from __future__ import annotations

import pyarrow as pa
import trio

from connectors.spark.sink.arrow_input import EVENT_TIME, HEADERS, KEY, VALUE
from connectors.spark.sink.arrow_write import RowSizes, encode_rows
from connectors.spark.sink.routing import Target
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.task_ledgers import SegmentTotals, make_ledger
from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.wire.messages import Buffer
from ledger.writing.writer import LedgerWriter
from stream.core.entry.compression import Compression, require
from stream.core.entry.format import BODY_BYTES_MAX
from stream.core.entry.records import decode
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.sinks import SinkLedger
from stream.sinks.sinks import UnclosedLedger

_ROOM_BYTES = 4096
"""Reserved in an entry for the padding of its columns."""


def rows_of(payload: Buffer, entry: int) -> pa.RecordBatch:
    """Returns the rows of an entry, with the columns that a sink writes. Raises RecordFormatError,
    which names `entry`."""
    found = decode(payload, entry=entry).to_arrow()
    return found.rename_columns([VALUE, KEY, EVENT_TIME, HEADERS])


class LedgerOutput:
    """Gathers rows to entries, and writes them.

    Args:
        client: writes the ledgers.
        target: their stream.
        policy: the settings of its namespace.
        batch: the tag of the ledgers.
        entry_bytes: the approximate size of entries.
        leaves_open: whether the ledgers are only prepared to be closed, by the transaction that
            commits them, and made with as few requests to the metadata as possible.

    Raises CompressionUnavailable.
    """

    def __init__(
        self,
        client: LedgerClient,
        target: Target,
        policy: NamespaceMetadata,
        batch: SinkBatch,
        entry_bytes: int,
        *,
        leaves_open: bool = False,
    ) -> None:
        self.made: list[int] = []
        """All ledgers that were created."""
        self.unclosed: list[UnclosedLedger] = []
        self._client = client
        self._target = target
        self._policy = policy
        self._batch = batch
        self._entry_bytes = min(entry_bytes, BODY_BYTES_MAX - _ROOM_BYTES)
        self._leaves_open = leaves_open
        self._compression = Compression.named(policy.compression)
        require(self._compression)
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._writer: LedgerWriter | None = None
        self._created: LedgerMetadata | None = None
        self._totals = SegmentTotals()
        self._done: list[SinkLedger] = []

    async def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows; sends them once they fill an entry. Raises what creating and writing a ledger
        raises."""
        self._buffered.append(rows)
        self._buffered_bytes += RowSizes(rows).between(0, rows.num_rows)
        if self._buffered_bytes >= self._entry_bytes:
            await self._send()

    async def _send(self) -> None:
        if not self._buffered:
            return
        held, self._buffered, self._buffered_bytes = self._buffered, [], 0
        rows = held[0] if len(held) == 1 else pa.concat_batches(held)
        for first, stop in RowSizes(rows).cuts(self._entry_bytes):
            writer = await self._current_ledger()
            count = stop - first
            payload = encode_rows(
                rows.slice(first, count),
                first_sequence=self._totals.records,
                append_time_ms=self._client.now_ms(),
                compression=self._compression,
            )
            while not writer.has_room:
                await writer.wait_room()
            writer.append_nowait(payload)
            self._totals.add(payload, count)
            await trio.lowlevel.checkpoint()  # other tasks of the loop run between entries

    async def _current_ledger(self) -> LedgerWriter:
        """Returns the ledger for the next entry."""
        if self._writer is not None and self._writer.length >= self._policy.roll_bytes:
            await self._end_ledger()
        if self._writer is None:
            self._totals = SegmentTotals()
            self._writer = await make_ledger(
                self._client, self._target, self._policy, self._batch,
                saves_requests=self._leaves_open,
            )  # fmt: skip
            self._created = self._writer.metadata
            self.made.append(self._writer.ledger_id)
        return self._writer

    async def _end_ledger(self) -> None:
        if self._writer is None:
            return
        if self._leaves_open and self._created is not None:
            metadata = await self._writer.prepare_close()
            self.unclosed.append(UnclosedLedger(self._writer, self._created))
        else:
            metadata = await self._writer.close()
        end = self._totals.end(metadata.last_entry_id, metadata.length)
        namespace, stream = self._target
        self._done.append(SinkLedger(namespace, stream, metadata.ledger_id, end))
        self._writer = None

    async def close(self) -> list[SinkLedger]:
        """Sends the rest; returns the ledgers when all their entries are durable."""
        await self._send()
        await self._end_ledger()
        return self._done

    def abandon(self) -> None:
        """Ends the writers. Does not wait."""
        for each in self.unclosed:
            each.writer.abandon()
        if self._writer is not None:
            self._writer.abandon()
