"""The reading half of a Namespace: one stream forward or backward, or several merged.

Keeps no state; never fences a writer.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from ledger.client import LedgerClient
from stream.backward import BackwardBatches, read_last
from stream.core.names import check_name
from stream.core.position import EARLIEST, Position, Start
from stream.core.records import Record
from stream.reader import OnTruncated, StreamReader
from stream.shared_tail import SharedTails
from stream.store import StreamStore


class NamespaceReading:
    """What can be read of the streams of a namespace; a part of `Namespace`."""

    client: LedgerClient
    name: str
    store: StreamStore
    tails: SharedTails
    """Readers at the end of one stream share what is fetched."""

    def reader(
        self, stream: str, *, start: Start = EARLIEST, on_truncated: OnTruncated = "error"
    ) -> AbstractAsyncContextManager[StreamReader]:
        """Reads a stream, or one partition ("clicks#2").

        Args:
            start: EARLIEST, LATEST, a Position, FromSequence, FromTime (when appended),
                FromEventTime, FromCursor or FromEnd.
            on_truncated: what to do when the wanted record was truncated, at the start or later:
                "error" raises Truncated, "earliest" goes on at the first record there is,
                "latest" at the end. The records in between are not read then; a warning is logged.

        Entering raises NoSuchStream, IsPartitioned, NoSuchCursor, Truncated.
        """
        check_name(stream)
        return StreamReader(
            self.client, self.store, self.name, stream, start, on_truncated, self.tails
        )

    async def read_last(self, stream: str, records: int) -> list[Record]:
        """The last so many records, in the order of the stream; all, if it has fewer.

        Costs memory for these records, and reads little else. Raises NoSuchStream,
        IsPartitioned, InvalidArgument for a negative number, what reading ledgers raises.
        """
        return await read_last(self.backward_batches(stream), records)

    def backward_batches(self, stream: str, *, before: Position | None = None) -> BackwardBatches:
        """Batches of records from the end, or from before a position that was read, back to where
        the stream begins. An async iterator; use it in `async with` or close it.

        Within a batch records are in the order of the stream. Its calls raise NoSuchStream,
        IsPartitioned, what reading ledgers raises.
        """
        check_name(stream)
        return BackwardBatches(self.client, self.store, self.name, stream, before)
