"""stream.partitions.writer for threads.

Generated from stream/partitions/writer.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from collections.abc import Sequence

from trio import WouldBlock

from stream.blocking.bridge import Bridge
from stream.blocking.tickets import Appending, PartitionTicket
from stream.bridge.writing import PartitionedAppends
from stream.core.entry.encoder import Headers
from stream.core.position import Position
from stream.partitions.writer import PartitionedWriter as TrioPartitionedWriter
from stream.partitions.writer import PartitionedWriterStatistics, PartitionPosition


class PartitionedWriter(Appending):
    """Made by `Namespace.partitioned_writer`; an `async with` block closes it.

    A record with a key goes to the partition of its key; one without to all partitions by turns,
    batch by batch, leaving out those that failed or have no room. Guarantees: records of one
    partition are confirmed in the order they were appended, so those of one key are, too; when
    the stream grows, a key moves only after all records taken before are durable.

    A partition that fails stays failed (see `reopen`); its records not confirmed by then are
    *unknown*. The others go on.
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
        """The partition of a key, as the stream is now."""
        return self._inner.partition_of(key)

    def append_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: int | None = None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> PartitionTicket:
        """Takes a record and returns at once; `ticket.wait()` tells where it is.

        `partition` overrules the key. Raises WouldBlock when its partition has no room, or
        no writer yet (then `wait_room()`), InvalidArgument for a record that is too large
        or a partition that is not ours, and the error of a partition that failed.
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
        event_time_ms: int | None = None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> PartitionPosition:
        """Appends a record; returns where it is once it is durable.

        Waits while its partition has no room. If cancelled, the record may be in the stream all
        the same. Raises the error of its partition (TakenOver, NotEnoughBookies, ...),
        InvalidArgument, LedgerClosed.
        """
        ticket = PartitionTicket(
            self._bridge, self._appends, value, key, event_time_ms, headers, partition
        )
        self._append(ticket)
        return ticket.wait()

    def append_many(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        event_times: Sequence[int | None] | None = None,
        *,
        partition: int | None = None,
    ) -> dict[int, tuple[Position, Position]]:
        """Appends records; returns the first and the last position in each partition they went
        to, when all are durable.

        Within a partition they keep their order. `keys` and `event_times` (ms), when given, have
        one item per value. Raises InvalidArgument before anything is taken; PartitionsFailed when
        some partitions failed, or refused a record over the namespace's own `record_bytes_max`:
        what was for the others is durable.
        """
        return self._bridge.call(
            lambda: self._appends.in_turn(
                lambda: self._inner.append_many(values, keys, event_times, partition=partition)
            )
        )

    def wait_room(self) -> None:
        """Returns when it is worth trying again what `append_nowait` refused."""
        self._wait_room()

    def flush(self) -> None:
        """Sends what has gathered; returns when all records taken so far are durable.

        Raises PartitionsFailed: what was for the other partitions is durable.
        """
        self._bridge.call(lambda: self._appends.settle(lambda: self._inner.flush()))

    def reopen(self, partition: int) -> None:
        """Takes a partition over again after its writer failed; nothing happens to one that works.

        Records that were unknown then may or may not be in it. Raises what opening a writer does.
        """
        self._bridge.call(lambda: self._appends.in_turn(lambda: self._inner.reopen(partition)))

    def close(self) -> None:
        """Waits until all records taken are durable, then seals the partitions. Idempotent.

        Raises PartitionsFailed; the other partitions are sealed. Called by the end of the
        `async with` block.
        """
        self._bridge.call(lambda: self._appends.settle(lambda: self._inner.close()))

    def statistics(self) -> PartitionedWriterStatistics:
        """Counters since each partition's writer was opened."""
        return self._inner.statistics()
