"""Writers in the trio thread, of streams and partitioned streams, for callers in other threads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from ledger.errors import LedgerError
from ledger.runtime.background import open_background
from ledger.runtime.bridge import Post, Wake
from stream.bridge.appends import Appends, Lane, PendingRecord
from stream.core.arguments import Time
from stream.core.entry.encoder import Headers
from stream.errors import PartitionsFailed
from stream.partitions.writer import PartitionedWriter
from stream.writing.batch import Ticket
from stream.writing.producer import Producer
from stream.writing.writer import StreamWriter


class StreamAppends(Appends):
    """Records in flight to a stream: one order for all."""

    def __init__(self, writer: StreamWriter, post: Post, wake: Wake, bytes_max: int) -> None:
        super().__init__(writer.stream, post, wake, bytes_max)
        self.writer = writer
        self.lane = Lane(writer.wait_room, self.end)

    @property
    def error(self) -> LedgerError | None:
        return self.writer.error

    def lane_of(self, record: PendingRecord) -> Lane:
        return self.lane

    def lanes(self) -> list[Lane]:
        return [self.lane]


class PartitionedAppends(Appends):
    """Records in flight to the partitions of a stream: one order for each partition, so that a
    partition that is stuck does not stop the others."""

    def __init__(
        self,
        writer: PartitionedWriter,
        nursery: trio.Nursery,
        post: Post,
        wake: Wake,
        bytes_max: int,
    ) -> None:
        super().__init__(writer.stream, post, wake, bytes_max)
        self.writer = writer
        self._nursery = nursery
        self._lanes: dict[int, Lane] = {}
        self._partitions = writer.partitions

    @property
    def error(self) -> LedgerError | None:
        return None  # each partition has an error of its own

    def lane_of(self, record: PendingRecord) -> Lane:
        assert isinstance(record, RoutedRecord), "of another writer"
        key = record.key
        if key is None or record.given_partition is not None:
            return self.lane(record.partition)
        waiting = [lane for lane in self._lanes.values() if lane.offered]
        if not waiting:
            self._partitions = self.writer.partitions
        elif self._partitions != self.writer.partitions:
            # The stream has more partitions now: a key follows its records that still wait.
            for lane in waiting:
                if any(each.key == key for each in lane.offered):
                    return lane
        return self.lane(self.writer.partition_of(key))

    def lane(self, number: int) -> Lane:
        """Returns the lane of this partition; -1: of records that may go to any partition."""
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Lane(self.writer.wait_room, self.end)
            self._nursery.start_soon(lane.run_pushing)
            self._nursery.start_soon(lane.run_confirming)
        return lane

    def lanes(self) -> list[Lane]:
        return list(self._lanes.values())


class StreamRecord(PendingRecord):
    """A record in flight to a stream."""

    __slots__ = ("appends", "expected_sequence")

    def __init__(
        self,
        appends: StreamAppends,
        value: bytes,
        key: bytes | None,
        event_time_ms: Time | None,
        headers: Headers | None,
        expected_sequence: int | None,
    ) -> None:
        super().__init__(value, key, event_time_ms, headers)
        self.appends = appends
        self.expected_sequence = expected_sequence

    def take(self) -> Ticket:
        return self.appends.writer.append_nowait(
            self.value,
            self.key,
            self.event_time_ms,
            self.headers,
            expected_sequence=self.expected_sequence,
        )


class NumberedRecord(PendingRecord):
    """A record of an idempotent producer."""

    __slots__ = ("producer", "producer_sequence")

    def __init__(
        self,
        producer: Producer,
        value: bytes,
        sequence: int,
        key: bytes | None,
        event_time_ms: Time | None,
        headers: Headers | None,
    ) -> None:
        super().__init__(value, key, event_time_ms, headers)
        self.producer = producer
        self.producer_sequence = sequence

    def take(self) -> Ticket | None:
        return self.producer.append_nowait(
            self.value,
            self.producer_sequence,
            key=self.key,
            event_time_ms=self.event_time_ms,
            headers=self.headers,
        )


class RoutedRecord(PendingRecord):
    """A record in flight to a partition. `partition` is -1 while none is chosen."""

    __slots__ = ("appends", "given_partition", "partition")

    def __init__(
        self,
        appends: PartitionedAppends,
        value: bytes,
        key: bytes | None,
        event_time_ms: Time | None,
        headers: Headers | None,
        partition: int | None,
    ) -> None:
        super().__init__(value, key, event_time_ms, headers)
        self.appends = appends
        self.given_partition = partition
        self.partition = -1 if partition is None else partition

    def take(self) -> Ticket:
        ticket = self.appends.writer.append_nowait(
            self.value,
            self.key,
            self.event_time_ms,
            self.headers,
            partition=self.given_partition,
        )
        self.partition = ticket.partition
        return ticket._ticket


@asynccontextmanager
async def bridged_writer(
    opening: AbstractAsyncContextManager[StreamWriter], post: Post, wake: Wake, bytes_max: int
) -> AsyncIterator[StreamAppends]:
    """In the trio thread: opens a writer for other threads; the end of the block closes it."""
    async with opening as writer:
        appends = StreamAppends(writer, post, wake, bytes_max)
        try:
            async with open_background() as nursery:
                nursery.start_soon(appends.lane.run_pushing)
                nursery.start_soon(appends.lane.run_confirming)
                yield appends
                appends.arrive()
                appends.close()
                if writer.error is None:
                    await appends.settle(writer.flush)
        finally:
            appends.close()
            appends.end_all()


@asynccontextmanager
async def bridged_partitioned_writer(
    opening: AbstractAsyncContextManager[PartitionedWriter], post: Post, wake: Wake, bytes_max: int
) -> AsyncIterator[PartitionedAppends]:
    """In the trio thread: opens a writer of a partitioned stream for callers in other threads."""
    async with opening as writer, open_background() as nursery:
        appends = PartitionedAppends(writer, nursery, post, wake, bytes_max)
        try:
            yield appends
            appends.arrive()
            appends.close()
            await appends.settle(lambda: _flush(writer))
        finally:
            appends.close()
            appends.end_all()


async def _flush(writer: PartitionedWriter) -> None:
    try:
        await writer.flush()
    except PartitionsFailed:
        pass  # closing raises the same
