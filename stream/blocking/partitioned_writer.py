"""stream.partitions.writer for threads.

Generated from stream/partitions/writer.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from collections.abc import Iterable

from trio import WouldBlock

from stream.blocking.bridge import Bridge
from stream.blocking.opening import Opened
from stream.blocking.tickets import Appending, PartitionTicket
from stream.bridge.writing import PartitionedAppends
from stream.core.arguments import Time, columns_of
from stream.core.entry.encoder import Headers
from stream.core.position import Position
from stream.partitions.ticket import PartitionPosition
from stream.partitions.writer import PartitionedWriter as TrioPartitionedWriter
from stream.partitions.writer import PartitionedWriterStatistics


class PartitionedWriter(Appending, Opened):
    """Made by `Namespace.partitioned_writer`; an `async with` block closes it.

    A record with a key goes to the partition of its key; one without to all partitions in turn,
    batch by batch, except those that failed or have no free capacity. Guarantees: records of one
    partition are confirmed in the order they were appended, and so are those of one key; when the
    stream grows, a key moves only after all records accepted before are durable.

    A partition that fails stays failed (see `reopen`); its records not confirmed by then are
    *unknown*. The others continue.
    """

    _bridge: Bridge
    _inner: TrioPartitionedWriter

    _appends: PartitionedAppends

    @classmethod
    def _of(cls, bridge: Bridge, holder: PartitionedAppends) -> PartitionedWriter:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder.writer
        made._appends = holder
        return made

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def partitions(self) -> int:
        """Partitions that records are routed to."""
        return self._inner.partitions

    def partition_of(self, key: bytes) -> int:
        """Returns the partition of a key, as the stream is now."""
        return self._inner.partition_of(key)

    def append_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> PartitionTicket:
        """Accepts a record and returns at once; `ticket.wait()` returns where it is.

        `partition` overrides the key. Raises WouldBlock when its partition has no free
        capacity, or no writer yet (then `wait_room()`), InvalidArgument for a record that is
        too large or a partition that is not ours, and the error of a partition that failed.
        """
        if not self._appends.has_room:
            raise WouldBlock
        ticket = PartitionTicket(
            self._bridge, self._appends, value, key, event_time_ms, headers, partition
        )
        self._appends.submit(ticket)
        return ticket

    def append(
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
        ticket = PartitionTicket(
            self._bridge, self._appends, value, key, event_time_ms, headers, partition
        )
        self._append(ticket)
        return ticket.wait()

    def append_many(
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
        values, keys, event_times, headers = columns_of(values, keys, event_times, headers)
        return self._bridge.call(
            lambda: self._appends.in_turn(
                lambda: self._inner.append_many(
                    values, keys, event_times, headers=headers, partition=partition
                )
            )
        )

    def wait_room(self) -> None:
        """Returns when it is worth repeating what `append_nowait` refused."""
        self._wait_room()

    def flush(self) -> None:
        """Sends what has gathered; returns when all records accepted so far are durable.

        Raises PartitionsFailed: records for the other partitions are durable.
        """
        self._bridge.call(lambda: self._appends.settle(lambda: self._inner.flush()))

    def reopen(self, partition: int) -> None:
        """Takes a partition over again after its writer failed; does nothing to one that works.

        Records that were unknown then may or may not be in it. Raises what opening a writer does.
        """
        self._bridge.call(lambda: self._appends.in_turn(lambda: self._inner.reopen(partition)))

    def close(self) -> None:
        """Waits until all records accepted are durable, then seals the partitions. Idempotent.

        Raises PartitionsFailed; the other partitions are sealed. Called by the end of the `async
        with` block.
        """
        try:
            self._bridge.call(lambda: self._appends.settle(lambda: self._inner.close()))
        finally:
            self._leave()

    def statistics(self) -> PartitionedWriterStatistics:
        """Returns counters since each partition's writer was opened."""
        return self._inner.statistics()
