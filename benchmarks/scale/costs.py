"""What each step asks of the metadata store, in operations of `MetadataStore`, and a meter of them.

The tests count the operations of the real stores.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cost:
    """A number of reads, lists included, and of writes."""

    reads: int = 0
    writes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.reads + other.reads, self.writes + other.writes)

    def __mul__(self, count: int) -> Cost:
        return Cost(self.reads * count, self.writes * count)

    @property
    def total(self) -> int:
        return self.reads + self.writes


READ_LEDGER = Cost(reads=1)
MARK = Cost(writes=1)
"""A transaction that checks that the ledger exists, and makes the mark with its folder."""
LIST_MARKS = Cost(reads=3)
"""And one list for each folder of the third level."""
LIST_LOCKS = Cost(reads=1)
FEED = Cost(reads=1)
"""The metadata of a marked ledger, before it is queued."""
LOCK = Cost(writes=1)
LOCKED_BY_OTHER = Cost(reads=1, writes=1)
BEGIN = Cost(reads=2)
"""The mark and the metadata, under the lock."""
STORE_CLOSED = Cost(writes=1)
STORE_OPEN = Cost(reads=1, writes=1)
LOOK_AGAIN = Cost(reads=1)
WRITER_ALIVE = Cost(reads=1)
UNMARK = Cost(writes=1)
"""A transaction, with the folder of the mark and, at the end of a copy, the lock."""
PRUNE = Cost(reads=1, writes=1)
"""The last folder above a mark that is not empty, in ZooKeeper with a look at why."""
PRUNED_FOLDER = Cost(writes=1)
UNLOCK = Cost(reads=1, writes=1)
UNLOCKED_WITH_MARK = Cost(reads=1)
ENSEMBLE_CHANGE = Cost(reads=2, writes=1)
"""The list of bookies; the metadata; and one transaction with the check of the writer's node."""
VIEW = Cost(reads=9)
"""How a process learns of a change of the bookies: the lists of those that are up, read-only,
known, and to be emptied."""
PUBLISH = Cost(writes=1)


@dataclass(slots=True)
class Meter:
    """Counts operations by second and by who sent them."""

    by_sender: dict[str, Cost] = field(default_factory=dict)
    _seconds: dict[str, array[int]] = field(default_factory=dict)

    def count(self, sender: str, at_s: float, cost: Cost, per_s: float = 0.0) -> None:
        """Counts operations that begin at a time, spaced by a rate; 0: all at once."""
        self.by_sender[sender] = self.by_sender.get(sender, Cost()) + cost
        seconds = self._seconds.setdefault(sender, array("l"))
        if not cost.total:
            return
        last = int(at_s + (cost.total - 1) / per_s) if per_s > 0 else int(at_s)
        if last >= len(seconds):
            seconds.extend([0] * (last + 1 - len(seconds)))
        if last == int(at_s):
            seconds[last] += cost.total
            return
        if cost.total < per_s:
            for number in range(cost.total):
                seconds[int(at_s + number / per_s)] += 1
            return
        counted = 0
        for second in range(int(at_s), last + 1):
            reached = min(cost.total, math.ceil((second + 1 - at_s) * per_s))
            seconds[second] += reached - counted
            counted = reached

    def series(self, *senders: str) -> list[int]:
        """Returns the operations of each second, of some senders or of all."""
        chosen = [self._seconds[one] for one in senders or self._seconds if one in self._seconds]
        length = max(map(len, chosen), default=0)
        return [sum(one[second] for one in chosen if second < len(one)) for second in range(length)]

    def most(self, *senders: str) -> int:
        """Returns the operations of the busiest second."""
        return max(self.series(*senders), default=0)

    def total(self, *senders: str) -> Cost:
        """Returns all reads and writes."""
        found = Cost()
        for sender in senders or self.by_sender:
            found += self.by_sender.get(sender, Cost())
        return found
