"""Plans what Spark's tasks read: ranges of segments, cut so that tasks get about the same bytes.

Batches and micro-batches are planned alike. A range is cut between entries only, as if all its
entries had the same size, so that planning needs no request to a bookie. Must never leave out a
record, nor assign one to two tasks.

ReplicaBalancer chooses the replica that each range is read from first, so that tasks do not queue
at one bookie. The choice is advice: any replica can answer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from connectors.spark.core.offsets import StreamOffset
from stream.core.position import Position

if TYPE_CHECKING:
    from ledger.core.metadata import LedgerMetadata
    from stream.core.metadata.segments import Segment


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Records of one segment: entries `first_entry` to `last_entry`, both included.

    The range begins at `first_slot` of the first entry and ends before `end_slot` of the last one
    (None: at its end). `stream` is the full name, of a partition "ns/clicks#2". `nbytes` is the
    approximate size of the range.
    """

    stream: str
    segment: Segment
    first_entry: int
    first_slot: int
    last_entry: int
    end_slot: int | None
    nbytes: int

    def __post_init__(self) -> None:
        assert 0 <= self.first_entry <= self.last_entry, f"{self} has no entries"
        assert self.end_slot is None or self.end_slot > (
            self.first_slot if self.first_entry == self.last_entry else 0
        ), f"{self} has no records in its last entry"

    @property
    def entries(self) -> int:
        return self.last_entry - self.first_entry + 1


Task = tuple[SegmentRange, ...]
"""The ranges that one task reads, in order."""


def ranges_between(
    name: str, segments: Iterable[Segment], start: StreamOffset, end: StreamOffset
) -> list[SegmentRange]:
    """Returns the records of a stream from `start` on and before `end`, by segment; `segments` has
    all of them at least.

    Both offsets must be of this stream and available, that is, not truncated.
    """
    found: list[SegmentRange] = []
    if end.sequence <= start.sequence:
        return found
    for segment in segments:
        if not start.segment <= segment.number <= end.segment:
            continue
        first = start.position if segment.number == start.segment else Position(0, 0, 0)
        before = start.nbytes if segment.number == start.segment else 0
        end_slot: int | None = None
        if segment.number < end.segment:
            last_entry, behind = segment.last_entry, segment.nbytes
        elif end.slot:
            last_entry, behind, end_slot = end.entry, end.nbytes, end.slot
        else:
            last_entry, behind = end.entry - 1, end.nbytes
        if first.entry > last_entry:
            continue
        found.append(
            SegmentRange(
                name, segment, first.entry, first.slot, last_entry, end_slot,
                max(0, behind - before),
            )
        )  # fmt: skip
    return found


def plan(
    ranges: Sequence[SegmentRange],
    *,
    task_bytes_max: int,
    tasks_min: int = 1,
    task_bytes_min: int = 0,
) -> list[Task]:
    """Returns tasks that together read exactly these ranges, in their order.

    There are enough tasks for each to read about `task_bytes_max` or less, and at least
    `tasks_min`, but fewer if tasks would otherwise be smaller than `task_bytes_min`, and never
    more than there are entries. Small ranges share a task.
    """
    assert task_bytes_max > 0, f"tasks of at most {task_bytes_max} bytes"
    assert tasks_min > 0, f"at least {tasks_min} tasks"
    total = sum(each.nbytes for each in ranges)
    wanted = max(tasks_min, -(-total // task_bytes_max))
    if task_bytes_min:
        wanted = min(wanted, max(1, total // task_bytes_min, -(-total // task_bytes_max)))
    wanted = min(wanted, sum(each.entries for each in ranges))
    tasks: list[Task] = []
    task: list[SegmentRange] = []
    left_bytes = total
    budget = _ceil_divide(total, wanted)
    for whole in ranges:
        left: SegmentRange | None = whole
        while left is not None:
            part: SegmentRange | None = left
            if len(tasks) + 1 < wanted:
                part, left = _cut(left, budget, may_be_none=bool(task))
            else:
                left = None
            if part is not None:
                task.append(part)
                budget -= part.nbytes
                left_bytes -= part.nbytes
            if len(tasks) + 1 < wanted and (left is not None or budget <= 0):
                tasks.append(tuple(task))
                task = []
                budget = _ceil_divide(left_bytes, wanted - len(tasks))
    if task:
        tasks.append(tuple(task))
    return tasks


def _ceil_divide(nbytes: int, tasks: int) -> int:
    return -(-nbytes // tasks) if tasks else nbytes


def _cut(
    whole: SegmentRange, budget: int, *, may_be_none: bool
) -> tuple[SegmentRange | None, SegmentRange | None]:
    """Cuts a range into a part of about `budget` bytes and the rest.

    The part has at least one entry, or is None if it `may_be_none`.
    """
    if whole.nbytes <= budget:
        return whole, None
    entries = (2 * max(0, budget) * whole.entries + whole.nbytes) // (2 * whole.nbytes)
    if not may_be_none:
        entries = max(1, entries)
    if entries >= whole.entries:
        return whole, None
    if entries == 0:
        return None, whole
    nbytes = whole.nbytes * entries // whole.entries
    middle = whole.first_entry + entries
    return (
        replace(whole, last_entry=middle - 1, end_slot=None, nbytes=nbytes),
        replace(whole, first_entry=middle, first_slot=0, nbytes=whole.nbytes - nbytes),
    )


class ReplicaBalancer:
    """Chooses replicas for the ranges of one plan; counts the bytes that each bookie serves.

    Ledgers list their bookies in different orders: the same index in two ensembles may be the
    same bookie. Memory is bounded by the number of bookies in the plan.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}

    def choose(
        self, metadata: LedgerMetadata, first_entry: int, nbytes: int, preferred: int
    ) -> int:
        """Returns the replica, 0 to write quorum - 1, for a range of `nbytes` stored bytes.

        If every bookie of the ensemble holds every entry, this is the replica on the bookie with
        the fewest bytes so far, or the first such one from `preferred` on. A striped ledger
        spreads each range over its bookies anyway: the result is `preferred`, modulo the write
        quorum. For a range in several fragments the first fragment decides.
        """
        served = self._bytes
        quorum = metadata.write_quorum
        bookies = metadata.fragment_of(first_entry).bookies
        preferred %= quorum
        if metadata.ensemble_size > quorum:
            for bookie in bookies:
                served[bookie] = served.get(bookie, 0) + nbytes // len(bookies)
            return preferred
        candidates = ((preferred + i) % quorum for i in range(quorum))
        replica = min(candidates, key=lambda each: served.get(bookies[each], 0))
        served[bookies[replica]] = served.get(bookies[replica], 0) + nbytes
        return replica
