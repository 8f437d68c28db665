"""Chooses the partition of a record: by its key, or in turn for records without one.

Jump consistent hashing (Lamping and Veach, 2014) over 64 bits of the key: writers of all releases
and languages must agree, so neither the hash nor the numbers may ever change. Shell:
partitions/writer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from crc32c import crc32c

from ledger.errors import InvalidArgument
from stream.core.entry.record_columns import RecordColumns
from stream.core.names import PARTITIONS_MAX

CACHED_KEYS_MAX: Final = 1 << 16
SLICE_RECORDS: Final = 2000
"""Records without keys are spread in slices of at least this size: smaller batches cost more."""

CACHED_KEY_BYTES_MAX: Final = 64
"""Longer keys are hashed each time, so that the cache stays below some 10 MB."""

_MASK: Final = (1 << 64) - 1
_STEP: Final = 2862933555777941757


def key_hash(key: bytes) -> int:
    """Returns 64 bits of a key: its CRC-32 above its CRC-32C. Never changes."""
    return crc32(key) << 32 | crc32c(key)


def jump_hash(hashed: int, partitions: int) -> int:
    """Returns the partition of a 64-bit hash. When partitions grow from n to m, a share of (m-n)/m
    of all hashes moves, and only to new partitions."""
    assert partitions > 0, "no partition to choose"
    at, following = -1, 0
    while following < partitions:
        at = following
        hashed = (hashed * _STEP + 1) & _MASK
        following = int((at + 1) * (2147483648.0 / ((hashed >> 33) + 1)))
    return at


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition of records with this key, of `partitions` in total."""
    return jump_hash(key_hash(key), partitions)


class Routes(dict[bytes | None, int]):
    """Maps keys to partitions, with a cache. Hot: `routes[key]` is a key's partition. Bounded in
    keys and bytes.

    `routes[None]` is where records without a key go at the moment; the owner advances it with
    `turn`.
    """

    __slots__ = ("_is_chosen", "_own", "_turns", "partitions")

    def __init__(self, partitions: int, own: Sequence[int] | None = None) -> None:
        """`own`: the partitions that receive records without a key in turn; None means all."""
        super().__init__()
        if not 0 < partitions <= PARTITIONS_MAX:
            raise InvalidArgument(f"{partitions} partitions, legal is 1 to {PARTITIONS_MAX}")
        self.partitions = partitions
        self._own = tuple(range(partitions) if own is None else own)
        if not self._own or not all(0 <= number < partitions for number in self._own):
            raise InvalidArgument(f"partitions {self._own}: there are 0 to {partitions - 1}")
        self._is_chosen = own is not None
        self._turns = 0
        self[None] = self._own[0]

    def __missing__(self, key: bytes | None) -> int:
        assert key is not None, "records without a key always have a partition"
        partition = jump_hash(key_hash(key), self.partitions)
        if len(key) <= CACHED_KEY_BYTES_MAX:
            if len(self) >= CACHED_KEYS_MAX:
                turn = self[None]
                self.clear()
                self[None] = turn
            self[key] = partition
        return partition

    @property
    def turns(self) -> int:
        """Partitions that receive records without a key in turn."""
        return len(self._own)

    def grown(self, partitions: int) -> Routes:
        """Returns the routes for more partitions. If the partitions that take turns were chosen,
        they stay."""
        return Routes(partitions, self._own if self._is_chosen else None)

    def turn(self) -> int:
        """Advances to the next partition that receives records without a key; returns it."""
        self._turns = (self._turns + 1) % len(self._own)
        at = self[None] = self._own[self._turns]
        return at


def grouped(
    routes: Routes, columns: RecordColumns, turns: Sequence[int]
) -> dict[int, RecordColumns]:
    """Returns the records of each partition, in order.

    If no record has a key, they are sliced over the partitions in `turns`; single records without a
    key go to the first of these.
    """
    keys = columns.keys
    if keys is None:
        size = -(-len(columns.values) // len(turns))
        begins = range(0, len(columns.values), size)
        return {
            number: columns.part(begin, begin + size)
            for number, begin in zip(turns, begins, strict=False)
        }
    routes[None] = turns[0]
    indexes: dict[int, list[int]] = {}
    for at, number in enumerate(map(routes.__getitem__, keys)):
        indexes.setdefault(number, []).append(at)
    if len(indexes) == 1:
        return dict.fromkeys(indexes, columns)
    return {number: columns.picked(chosen) for number, chosen in indexes.items()}
