"""What a consumer hands out: batches of a partition, whole or record by record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stream.consuming.assigned_partition import AssignedPartition
from stream.core.entry.records import Record, RecordBatch
from stream.core.position import Position


class Delivery(NamedTuple):
    """Records of one partition. `epoch` rises with each change of its holder: store it beside
    what you make of the records, and refuse an older one, to fence a member that woke late."""

    partition: str
    batch: RecordBatch
    epoch: int


class RecordDelivery(NamedTuple):
    """One record of a partition; see `Delivery`."""

    partition: str
    record: Record
    epoch: int


@dataclass(slots=True)
class DeliveredBatch:
    """A batch of which the records before `index` were handed out."""

    assigned: AssignedPartition
    delivery: Delivery
    records: list[Record]
    index: int = 0

    @property
    def is_lost(self) -> bool:
        """Another gets the rest, or we at another epoch. What is merely in doubt is not lost."""
        return not self.assigned.is_holding(self.delivery.epoch)

    @property
    def is_current(self) -> bool:
        return self.assigned.is_offering and not self.is_lost

    @property
    def handed_out_to(self) -> Position:
        """Behind what was handed out last: a record, or all of it at once."""
        if self.index == 0:
            return self.delivery.batch.after
        return self.records[self.index - 1].position.after
