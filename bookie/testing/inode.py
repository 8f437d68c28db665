"""The bytes of one simulated file: as processes see them, and as they are on the platter.

It records which ranges were written since the last sync, and settles what is left of them after a
crash, sector by sector.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

SECTOR_BYTES = 512

Range = tuple[int, int]


def parent_of(path: str) -> str:
    """Returns the directory of `path`, without a slash at its end."""
    return path.rstrip("/").rpartition("/")[0]


class Mount(Protocol):
    """What open files and key-value stores of one incarnation ask of its disk."""

    @property
    def is_frozen(self) -> bool:
        """The process is dead: nothing may change any more."""
        ...

    def check(self) -> None:
        """Raises OSError if the process is dead."""
        ...

    def check_space(self, path: str, growth: int) -> None:
        """Raises OSError if the disk of `path` has less than `growth` bytes free."""
        ...

    def is_cached(self, path: str) -> bool:
        """Returns whether a read of `path` finds its bytes in memory, by chance."""
        ...

    def count_sync(self) -> None:
        """Notes one sync of a file or a directory."""
        ...

    async def operate(self, kind: str, path: str) -> None:
        """Takes the time of one operation; raises OSError if chance or death fails it."""
        ...

    def operate_now(self, kind: str, path: str) -> float:
        """Does the same in no time; returns the seconds that it would have taken."""
        ...


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A write in progress: a crash may leave any of its sectors."""

    offset: int
    data: bytes


@dataclass(slots=True, eq=False)
class DirtyPart:
    """What one sync is making durable: ranges with their bytes when it began, and the size."""

    ranges: list[tuple[int, bytes]]
    size: int

    def spans(self) -> list[Range]:
        return [(first, first + len(data)) for first, data in self.ranges]


class Inode:
    """One file, whatever its names."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.in_flight: list[PendingWrite] = []
        self._durable = bytearray()
        self._dirty: list[Range] = []
        self._syncing: list[DirtyPart] = []
        self._doubtful: list[Range] = []
        """Ranges whose sync failed: clean to the system, unknown on the platter."""

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        self.extend(offset)
        self.data[offset : offset + len(data)] = data
        self._dirty.append((offset, offset + len(data)))

    def extend(self, size: int) -> None:
        """Makes the file at least `size` bytes long, with zeros."""
        if size > len(self.data):
            self.data.extend(bytes(size - len(self.data)))

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            self._dirty.append((size, len(self.data)))
        del self.data[size:]
        self.extend(size)

    def flip_bit(self, offset: int, bit: int) -> None:
        for image in (self.data, self._durable):
            if offset < len(image):
                image[offset] ^= 1 << bit

    def begin_sync(self) -> DirtyPart:
        ranges = [(first, self._newer(first, end)) for first, end in self._dirty]
        self._dirty = []
        part = DirtyPart(ranges, len(self.data))
        self._syncing.append(part)
        return part

    def finish_sync(self, part: DirtyPart) -> None:
        """Makes `part` durable, and parts of syncs that began earlier and are still in progress: a
        sync promises all writes that were finished when it began."""
        if part not in self._syncing:
            return  # a later sync has included it
        count = self._syncing.index(part) + 1
        for done in self._syncing[:count]:
            self._resize_durable(done.size)
            for first, data in done.ranges:
                end = min(first + len(data), done.size)
                if end > first:
                    self._durable[first:end] = data[: end - first]
        del self._syncing[:count]

    def fail_sync(self, part: DirtyPart) -> None:
        if part in self._syncing:
            self._syncing.remove(part)
            self._doubtful += part.spans()

    def settle_kill(self, chance: random.Random) -> None:
        """Settles the death of the process: finished writes stay, those in progress may be there in
        part."""
        for pending in self.in_flight:
            self._tear(self.data, pending, chance)
            self._dirty.append((pending.offset, pending.offset + len(pending.data)))
        for part in self._syncing:
            self._dirty += part.spans()
        self.in_flight, self._syncing = [], []

    def settle_power_loss(self, chance: random.Random, *, is_torn: bool) -> None:
        """Settles the death of the machine: the platter's bytes stay, and with `is_torn` chance
        decides for each sector not synced, and for the size, whether the newer form is there
        too."""
        if is_torn:
            self.settle_kill(chance)
            self._tear_size(chance)
            for begin in self._unsynced_sectors():
                stop = min(begin + SECTOR_BYTES, len(self._durable))
                if stop > begin and chance.random() < 0.5:
                    self._durable[begin:stop] = self._newer(begin, stop)
        self.in_flight, self._syncing, self._dirty, self._doubtful = [], [], [], []
        self.data = bytearray(self._durable)

    def _unsynced_sectors(self) -> list[int]:
        sectors: dict[int, None] = {}
        for first, end in [*self._dirty, *self._doubtful]:
            sectors.update(dict.fromkeys(range(first - first % SECTOR_BYTES, end, SECTOR_BYTES)))
        return list(sectors)

    def _newer(self, begin: int, stop: int) -> bytes:
        return bytes(self.data[begin:stop]).ljust(stop - begin, b"\0")

    def _tear_size(self, chance: random.Random) -> None:
        shorter, longer = sorted((len(self._durable), len(self.data)))
        self._resize_durable(chance.choice((shorter, longer, chance.randint(shorter, longer))))

    def _tear(self, image: bytearray, pending: PendingWrite, chance: random.Random) -> None:
        end = pending.offset + len(pending.data)
        for begin, stop in _sectors(pending.offset, end):
            if chance.random() < 0.5:
                if len(image) < stop:
                    image.extend(bytes(stop - len(image)))
                image[begin:stop] = pending.data[begin - pending.offset : stop - pending.offset]

    def _resize_durable(self, size: int) -> None:
        del self._durable[size:]
        self._durable.extend(bytes(size - len(self._durable)))


def _sectors(first: int, end: int) -> list[Range]:
    """Returns the range [first, end) cut at the borders of sectors."""
    cuts = list(range(first - first % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES))
    return list(zip([first, *cuts], [*cuts, end], strict=True)) if first < end else []
