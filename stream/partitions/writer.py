"""PartitionedWriter: routes records to the partitions of a stream, each with its own writer.

Must keep records of one key in order, growth included, and never let the failure of one partition
stop the others. The decisions are in core/routing.py, the writers in partitions/writers.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import trio

from ledger.errors import InvalidArgument, LedgerError
from ledger.runtime.background import open_background
from ledger.runtime.opening import Opened
from stream.core.arguments import Time, columns_of
from stream.core.entry.encoder import Headers
from stream.core.entry.sizes import many_bytes
from stream.core.position import Position
from stream.core.routing import SLICE_RECORDS, Routes, grouped
from stream.errors import PartitionsFailed
from stream.partitions.ticket import PartitionPosition, PartitionTicket
from stream.partitions.writers import PartitionWriters
from stream.scope import NamespaceScope
from stream.store.partitions import PartitionStore
from stream.writing.batch import Ticket
from stream.writing.open_segment import StreamWriterStatistics, WriterOptions
from stream.writing.policy_watch import PolicyWatch
from stream.writing.writer import StreamWriter

_WATCH_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class PartitionedWriterStatistics:
    """Counters of the partition writers opened so far, by partition, and their sums."""

    partitions: int
    by_partition: Mapping[int, StreamWriterStatistics]
    failed: Mapping[int, LedgerError]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.by_partition.values())

    @property
    def entries(self) -> int:
        return sum(each.entries for each in self.by_partition.values())

    @property
    def bytes_pending(self) -> int:
        return sum(each.bytes_pending for each in self.by_partition.values())


class PartitionedWriter(Opened):
    """Made by `Namespace.partitioned_writer`; an `async with` block closes it.

    A record with a key goes to the partition of its key; one without to all partitions in turn,
    batch by batch, except those that failed or have no free capacity. Guarantees: records of one
    partition are confirmed in the order they were appended, and so are those of one key; when the
    stream grows, a key moves only after all records accepted before are durable.

    A partition that fails stays failed (see `reopen`); its records not confirmed by then are
    *unknown*. The others continue.
    """

    def __init__(self, stream: str, routes: Routes, writers: PartitionWriters) -> None:
        self.stream = stream
        self._routes = routes
        self._writers = writers
        # The last record without a key: its ticket, and its partition.
        self._keyless: Ticket | None = None
        self._keyless_number = 0
        self._keyless_writer: StreamWriter | None = None
        self._refused: dict[int, None] = {}
        self._calls = 0
        self._calls_ended = trio.Event()
        self._switching: trio.Event | None = None
        """Set while the writer switches to more partitions: no record is accepted meanwhile."""

    @property
    def partitions(self) -> int:
        """Partitions that records are routed to."""
        return self._routes.partitions

    def partition_of(self, key: bytes) -> int:
        """Returns the partition of a key, as the stream is now."""
        return self._routes[key]

    def append_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> PartitionTicket:
        """Accepts a record and returns at once; `await ticket.wait()` returns where it is.

        `partition` overrides the key. Raises trio.WouldBlock when its partition has no free
        capacity, or no writer yet (then `await wait_room()`), InvalidArgument for a record that is
        too large or a partition that is not ours, and the error of a partition that failed.
        """
        if self._switching is not None:
            raise trio.WouldBlock
        if partition is not None:
            number = partition
        else:
            number = self._routes[key] if key is not None else self._turn()
        writer = self._writers.open.get(number)
        if writer is None:
            self._writers.want(number)
            self._refused[number] = None
            raise trio.WouldBlock
        try:
            ticket = writer.append_nowait(value, key, event_time_ms, headers)
        except trio.WouldBlock:
            self._refused[number] = None
            raise
        if key is None and partition is None:
            self._keyless = ticket
        return PartitionTicket(number, ticket)

    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> PartitionPosition:
        """Appends a record; returns where it is once it is durable.

        Waits while its partition has no free capacity. If cancelled, the record may still be in the
        stream. Raises the error of its partition (TakenOver, NotEnoughBookies, ...),
        InvalidArgument, LedgerClosed.
        """
        while True:
            try:
                ticket = self.append_nowait(value, key, event_time_ms, headers, partition=partition)
            except trio.WouldBlock:
                await self.wait_room()
            else:
                return await ticket.wait()

    async def append_many(
        self,
        values: Iterable[bytes],
        keys: Iterable[bytes | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
        *,
        headers: Iterable[Headers | None] | None = None,
        partition: int | None = None,
    ) -> dict[int, tuple[Position, Position]]:
        """Appends records; returns the first and the last position in each partition that received
        some, when all are durable.

        Within a partition they keep their order. `keys`, `event_times` (ms) and `headers`, when
        given, have one item per value. Raises InvalidArgument before anything is accepted;
        PartitionsFailed when some partitions failed, or rejected a record over the namespace's own
        `record_bytes_max`: records for the others are durable.
        """
        columns = columns_of(values, keys, event_times, headers)
        if not many_bytes(columns):
            raise InvalidArgument("append_many needs at least one record")
        while self._switching is not None:
            await self._switching.wait()
        if partition is not None:
            groups = {partition: columns}
        else:
            slices = 1 if columns.keys is not None else -(-len(columns.values) // SLICE_RECORDS)
            groups = grouped(self._routes, columns, self._turns(slices))
        for number in groups:
            self._writers.check(number)
        positions: dict[int, tuple[Position, Position]] = {}

        async def append_group(number: int) -> None:
            writer = await self._writers.opened(number)
            positions[number] = await writer.append_many(**groups[number]._asdict())

        self._calls += 1
        try:
            await self._for_each(list(groups), append_group)
        finally:
            self._calls -= 1
            self._calls_ended.set()
        return positions

    async def wait_room(self) -> None:
        """Returns when it is worth repeating what `append_nowait` refused."""
        refused, self._refused = self._refused, {}
        if self._switching is not None:
            await self._switching.wait()
            return
        await trio.lowlevel.checkpoint()
        # The first is enough: others may have been refused by a partition that is stuck.
        async with trio.open_nursery() as nursery:

            async def wait(number: int) -> None:
                try:
                    writer = await self._writers.opened(number, is_error_kept=True)
                    await writer.wait_room()
                except LedgerError:
                    pass  # the next append to this partition raises it
                nursery.cancel_scope.cancel()

            for number in refused:
                nursery.start_soon(wait, number)

    async def flush(self) -> None:
        """Sends what has gathered; returns when all records accepted so far are durable.

        Raises PartitionsFailed: records for the other partitions are durable.
        """
        await trio.lowlevel.checkpoint()
        # As they are now: one that is opened again meanwhile has lost what it had accepted.
        writers = dict(self._writers.open)
        await self._for_each(list(writers), lambda number: writers[number].flush())

    async def reopen(self, partition: int) -> None:
        """Takes a partition over again after its writer failed; does nothing to one that works.

        Records that were unknown then may or may not be in it. Raises what opening a writer does.
        """
        await self._writers.reopen(partition)

    async def close(self) -> None:
        """Waits until all records accepted are durable, then seals the partitions. Idempotent.

        Raises PartitionsFailed; the other partitions are sealed. Called by the end of the `async
        with` block.
        """
        try:
            errors = await self._writers.close()
            if errors:
                done = [number for number in self._writers.open if number not in errors]
                raise PartitionsFailed(self.stream, errors, done)
        finally:
            await self._leave()

    def _description(self) -> str:
        return f"of {self.stream!r}, {self.partitions} partitions"

    def statistics(self) -> PartitionedWriterStatistics:
        """Returns counters since each partition's writer was opened."""
        writers = self._writers.open
        return PartitionedWriterStatistics(
            partitions=self.partitions,
            by_partition={number: writers[number].statistics() for number in sorted(writers)},
            failed={n: w.error for n, w in sorted(writers.items()) if w.error is not None},
        )

    # Records without a key

    def _turn(self) -> int:
        """Returns the partition of the next record without a key: that of the last one while its
        batch is open, then the next partition."""
        last, writer = self._keyless, self._keyless_writer
        if last is None or writer is None:
            number = self._usable(self._routes[None])
        elif last.sequence < 0 and writer.has_room:
            return self._keyless_number
        else:
            number = self._usable(self._routes.turn())
        self._keyless = None
        self._keyless_number = number
        self._keyless_writer = self._writers.open.get(number)
        return number

    def _turns(self, count: int) -> list[int]:
        """Returns up to `count` partitions whose turn it is."""
        routes = self._routes
        chosen = (self._usable(routes.turn()) for _ in range(min(count, routes.turns)))
        return list(dict.fromkeys(chosen))

    def _usable(self, number: int) -> int:
        """Returns this partition or the next with free capacity; else one that will have some; else
        one that failed, because all did. The first one without a writer gets one meanwhile."""
        routes, writers = self._routes, self._writers
        opening = full = -1
        for _ in range(routes.turns):
            writer = writers.open.get(number)
            if writer is None:
                if opening < 0 and writers.want_soon(number):
                    opening = number
            elif writer.has_room:
                return number
            elif writer.error is None:
                full = number
            number = routes.turn()
        return max(opening, full) if opening >= 0 or full >= 0 else number

    # Several partitions

    async def _for_each(self, numbers: list[int], work: Callable[[int], Awaitable[None]]) -> None:
        errors: dict[int, LedgerError] = {}

        async def one(number: int) -> None:
            try:
                await work(number)
            except LedgerError as error:
                errors[number] = error

        if len(numbers) == 1:
            await one(numbers[0])
        else:
            async with trio.open_nursery() as nursery:
                for number in numbers:
                    nursery.start_soon(one, number)
        if errors:
            done = [number for number in numbers if number not in errors]
            raise PartitionsFailed(self.stream, errors, done)

    # Growth

    async def follow_growth(self, scope: NamespaceScope) -> None:
        """Routes to new partitions when there are some. The task of the writer's block."""
        store = PartitionStore(scope.client.store)
        while True:
            try:
                async with aclosing(store.watch(scope.name, self.stream)) as versions:
                    async for version in versions:
                        if version is None:
                            return  # deleted: the writers of its partitions fail
                        if version.partitions > self._routes.partitions:
                            await self._switch(version.partitions)
            except LedgerError:
                await trio.sleep(_WATCH_RETRY_S)  # also if it cannot be read: the writers continue

    async def _switch(self, partitions: int) -> None:
        """Makes accepted records durable before any key moves, so that their order can be seen."""
        self._switching = trio.Event()
        try:
            while self._calls:
                self._calls_ended = trio.Event()
                await self._calls_ended.wait()
            try:
                await self.flush()
            except PartitionsFailed:
                pass  # those appends raise it
            self._routes = self._routes.grown(partitions)
            self._keyless = None
            self._writers.grow(partitions)
        finally:
            self._switching.set()
            self._switching = None


@asynccontextmanager
async def open_partitioned_writer(
    scope: NamespaceScope,
    watch: PolicyWatch,
    stream: str,
    options: WriterOptions,
    own: Sequence[int] | None = None,
) -> AsyncIterator[PartitionedWriter]:
    """Opens a writer of all partitions, each opened with its first record, or of `own`, opened now.

    It is closed at the end of the block; after an exception in it segments are left open for the
    next writer to recover. Raises NoSuchStream, NotPartitioned, PartitionsFailed (of `own`).
    """
    present = await PartitionStore(scope.client.store).read_partitioned(scope.name, stream)
    routes = Routes(present.partitions, own)
    async with open_background() as nursery:
        writers = PartitionWriters(scope, watch, present, options, nursery, own)
        writer = PartitionedWriter(stream, routes, writers)
        nursery.start_soon(writer.follow_growth, scope)
        if own is not None:
            await writers.open_all()
        yield writer
        await writer.close()
