"""What a consumer delivers: batches of a partition, as a whole or record by record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stream.consuming.assigned_partition import AssignedPartition
from stream.core.entry.records import Record, RecordBatch
from stream.core.position import Position


class Delivery(NamedTuple):
    """Records of one partition. `epoch` rises with each change of its holder: store it beside the
    results of the records, and reject an older one, to fence a member that resumes late."""

    partition: str
    batch: RecordBatch
    epoch: int


class RecordDelivery(NamedTuple):
    """A record of a partition; see `Delivery`."""

    partition: str
    record: Record
    epoch: int


@dataclass(slots=True)
class DeliveredBatch:
    """A batch of which the records before `index` were delivered."""

    assigned: AssignedPartition
    delivery: Delivery
    records: list[Record]
    index: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether another member gets the rest, or this one at another epoch. An unverified
        partition is not lost."""
        return not self.assigned.is_holding(self.delivery.epoch)

    @property
    def is_current(self) -> bool:
        """Whether the next record may be delivered now."""
        return self.assigned.is_offering and not self.is_lost

    @property
    def handed_out_to(self) -> Position:
        """The position behind what was delivered last: a record, or the whole batch."""
        if self.index == 0:
            return self.delivery.batch.after
        return self.records[self.index - 1].position.after
