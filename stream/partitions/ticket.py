"""Records in flight to a partition, and where they are when they are durable."""

from __future__ import annotations

from typing import NamedTuple

from stream.core.position import Position
from stream.writing.batch import Ticket


class PartitionPosition(NamedTuple):
    """Where a record of a partitioned stream is. Positions of one partition are ordered."""

    partition: int
    position: Position

    def __str__(self) -> str:
        return f"{self.partition}/{self.position}"


class PartitionTicket:
    """A record in flight to a partition."""

    __slots__ = ("_ticket", "partition")

    def __init__(self, partition: int, ticket: Ticket) -> None:
        self.partition = partition
        self._ticket = ticket

    def __repr__(self) -> str:
        return f"<{self._ticket!r} of partition {self.partition}>"

    @property
    def is_confirmed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._ticket.is_confirmed

    async def wait(self) -> PartitionPosition:
        """Returns where the record is once it is durable. Raises as `Ticket.wait`."""
        return PartitionPosition(self.partition, await self._ticket.wait())
