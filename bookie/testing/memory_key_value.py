"""The store of an index in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence

import trio


class MemoryKeyValue:
    """A KeyValue in memory, for tests and for clusters that need not outlive their process.

    `after_crash` returns the map that a new process would find.
    """

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._map: dict[bytes, bytes] = dict(pairs)
        self._keys: list[bytes] = sorted(self._map)
        self._durable: dict[bytes, bytes] = dict(self._map)
        self._unflushed: list[tuple[Sequence[tuple[bytes, bytes]], Sequence[bytes]]] = []

    def get(self, key: bytes) -> bytes | None:
        return self._map.get(key)

    def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
        i = bisect_right(self._keys, key)
        if i == 0 or self._keys[i - 1] < lowest:
            return None
        found = self._keys[i - 1]
        return found, self._map[found]

    def items(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for i in range(bisect_left(self._keys, first), bisect_left(self._keys, end)):
            key = self._keys[i]
            yield key, self._map[key]

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        self._unflushed.append((list(puts), list(deletes)))
        for key, value in puts:
            if key not in self._map:
                insort(self._keys, key)
            self._map[key] = value
        for key in deletes:
            if self._map.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    async def flush(self) -> None:
        _apply(self._durable, self._unflushed)
        self._unflushed.clear()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        pass

    @property
    def unflushed(self) -> int:
        """The number of batches that a crash may lose."""
        return len(self._unflushed)

    def after_crash(self, batches_kept: int = 0) -> MemoryKeyValue:
        """Returns the last flushed state plus the first `batches_kept` batches written since."""
        pairs = dict(self._durable)
        _apply(pairs, self._unflushed[:batches_kept])
        return MemoryKeyValue(pairs.items())


def _apply(
    pairs: dict[bytes, bytes],
    batches: Iterable[tuple[Sequence[tuple[bytes, bytes]], Sequence[bytes]]],
) -> None:
    for puts, deletes in batches:
        pairs.update(puts)
        for key in deletes:
            pairs.pop(key, None)
