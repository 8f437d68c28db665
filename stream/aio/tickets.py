"""Records in flight, and the back-pressure on appends, as callers of this interface see them.

The public classes are in writer.py, partitioned_writer.py and producer.py; the trio half is
stream/bridge/appends.py.
"""

from __future__ import annotations

import copy

from stream.aio.bridge import Bridge
from stream.bridge.appends import Appends, PendingRecord
from stream.bridge.writing import (
    NumberedRecord,
    PartitionedAppends,
    RoutedRecord,
    StreamAppends,
    StreamRecord,
)
from stream.core.arguments import Time
from stream.core.entry.encoder import Headers
from stream.core.position import Position
from stream.partitions.ticket import PartitionPosition
from stream.writing.producer import Producer as TrioProducer


class Ticket(StreamRecord):
    """A record in flight. `await ticket.wait()` returns its position once it is durable."""

    __slots__ = ("_bridge",)

    def __init__(
        self,
        bridge: Bridge,
        appends: StreamAppends,
        value: bytes,
        key: bytes | None,
        event_time_ms: Time | None,
        headers: Headers | None,
        expected_sequence: int | None = None,
    ) -> None:
        super().__init__(appends, value, key, event_time_ms, headers, expected_sequence)
        self._bridge = bridge

    @property
    def is_confirmed(self) -> bool:
        """Whether `wait` would return at once."""
        return self.is_set and self.error is None

    @property
    def sequence(self) -> int:
        """Sequence number of the record; -1 while its batch is still gathering records."""
        ticket = self.ticket
        return -1 if ticket is None else ticket.sequence

    async def wait(self) -> Position:
        """Returns the record's position when it is durable on its ack quorum.

        Raises the writer's error if the writer failed: the record may or may not be in the stream
        then; and SequenceMismatch or InvalidArgument if the writer refused it. Cancelling the wait
        does not withdraw the record.
        """
        await self._bridge.wait(self)
        position = self.outcome()
        assert position is not None, "confirmed without a position"
        return position


class PartitionTicket(RoutedRecord):
    """A record in flight to a partition; `partition` is -1 until it is known."""

    __slots__ = ("_bridge",)

    def __init__(
        self,
        bridge: Bridge,
        appends: PartitionedAppends,
        value: bytes,
        key: bytes | None,
        event_time_ms: Time | None,
        headers: Headers | None,
        partition: int | None,
    ) -> None:
        super().__init__(appends, value, key, event_time_ms, headers, partition)
        self._bridge = bridge

    @property
    def is_confirmed(self) -> bool:
        """Whether `wait` would return at once."""
        return self.is_set and self.error is None

    async def wait(self) -> PartitionPosition:
        """Returns the record's position when it is durable. Raises the same as `Ticket.wait`."""
        await self._bridge.wait(self)
        position = self.outcome()
        assert position is not None, "confirmed without a position"
        return PartitionPosition(self.partition, position)


class Appending:
    """The append methods of writers. `_appends` is the half in the trio thread."""

    _bridge: Bridge
    _appends: Appends

    async def _append(self, record: PendingRecord) -> Position | None:
        """Waits for room, then for the record's end; returns None if the stream had it before."""
        appends, bridge = self._appends, self._bridge
        bridge.check_loop()
        while not appends.has_room:
            await bridge.wait(appends.want_room())
        appends.submit(record)
        try:
            await bridge.wait(record)
        except BaseException:
            record.is_withdrawn = True
            raise
        return record.outcome()

    async def _wait_room(self) -> None:
        appends = self._appends
        while not appends.has_room:
            await self._bridge.wait(appends.want_room())
        error = appends.error
        if error is not None:
            raise copy.copy(error)


class Producing(Appending):
    """The append methods of producers."""

    _inner: TrioProducer

    def __repr__(self) -> str:
        return repr(self._inner)

    async def _append_numbered(
        self,
        value: bytes,
        sequence: int,
        key: bytes | None,
        event_time_ms: Time | None,
        headers: Headers | None,
    ) -> Position | None:
        return await self._append(
            NumberedRecord(self._inner, value, sequence, key, event_time_ms, headers)
        )
