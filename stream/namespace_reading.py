"""The reading half of a Namespace: one stream forward or backward, or several merged.

Keeps no state; never fences a writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, cast

from ledger.client import LedgerClient
from stream.core.entry.records import Record
from stream.core.names import check_name
from stream.core.position import EARLIEST, Position, Start
from stream.reading.backward import BackwardBatches, read_last
from stream.reading.merge_options import MergeOptions, OrderBy
from stream.reading.merged_reader import MergedReader, open_merged_reader
from stream.reading.reader import OnTruncated, StreamReader
from stream.reading.shared_tail import SharedTails
from stream.store.streams import StreamStore

if TYPE_CHECKING:
    from stream.namespace import Namespace


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

    def merged_reader(
        self,
        streams: str | Sequence[str],
        *,
        start: Start | Mapping[str, Start] = EARLIEST,
        order_by: OrderBy = "event_time",
        lateness_ms: int = 0,
        idle_timeout_ms: int | None = 5000,
        on_truncated: OnTruncated = "error",
        follow: bool = True,
        buffer_bytes: int = 64 << 20,
    ) -> AbstractAsyncContextManager[MergedReader]:
        """Reads several streams as one, in the order of time.

        Args:
            streams: names and patterns ("clicks", "clicks-*"); a partitioned stream stands for its
                partitions. Streams that are made later and match a pattern, and new partitions,
                join; they are read from their begin.
            start: as for `reader`, for each stream; or a mapping of streams to starts, such as
                `MergedReader.positions()` returned (those not in it begin at EARLIEST).
            order_by: "event_time" (a record without one has its append time) or "append_time".
            lateness_ms: how far a record may be behind the newest of its stream and still be put
                in order. Later ones are not dropped: they come with `is_late`.
            idle_timeout_ms: a stream that is at its end and had nothing for so long is not waited
                for; None: always waited for.
            on_truncated: as for `reader`.
            follow: wait for more at the end; else iteration ends where the streams do now.
            buffer_bytes: what may wait for its turn, over all streams. If order within
                `lateness_ms` needs more, records go out before, and what comes behind them is late.

        Entering raises NoSuchStream for a name that is not there (a pattern may match nothing),
        InvalidArgument; at most 1000 streams.
        """
        options = MergeOptions(
            start=start, order_by=order_by, lateness_ms=lateness_ms,
            idle_timeout_ms=idle_timeout_ms, on_truncated=on_truncated, follow=follow,
            buffer_bytes=buffer_bytes,
        )  # fmt: skip
        namespace = cast("Namespace", self)
        return open_merged_reader(MergedReader(namespace, streams, options))
