"""The simulated store of an index: after a crash, any state between the last flush and now.

States are kept at the borders of batches; a batch is never torn.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from bookie.testing.inode import Mount

# Puts, then deletes.
Batch = tuple[tuple[tuple[bytes, bytes], ...], tuple[bytes, ...]]


class KeyValueStates:
    """What the device holds of one store: the flushed state, and the batches since."""

    def __init__(self) -> None:
        self.durable: dict[bytes, bytes] = {}
        self.batches: list[Batch] = []
        self.batches_flushed = 0

    def settle(self, count: int | None, chance: random.Random) -> None:
        """Keeps the first `count` batches since the last flush (None: chance decides how many)."""
        self.flush(chance.randint(0, len(self.batches)) if count is None else count)
        self.batches = []

    def flush(self, count: int) -> None:
        """Makes the first `count` batches durable."""
        for batch in self.batches[:count]:
            _apply(self.durable, batch)
        del self.batches[:count]
        self.batches_flushed += count

    def current(self) -> dict[bytes, bytes]:
        state = dict(self.durable)
        for batch in self.batches:
            _apply(state, batch)
        return state


class SimKeyValue:
    """A sorted map of bytes to bytes of one incarnation; implements `KeyValue`."""

    def __init__(self, mount: Mount, path: str, states: KeyValueStates) -> None:
        self._mount = mount
        self._path = path
        self._states = states
        self._values = states.current()
        self._keys = sorted(self._values)
        self._changes = 0

    def get(self, key: bytes) -> bytes | None:
        self._mount.check()
        return self._values.get(key)

    def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
        self._mount.check()
        place = bisect_right(self._keys, key) - 1
        if place < 0 or self._keys[place] < lowest:
            return None
        return self._keys[place], self._values[self._keys[place]]

    def items(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._mount.check()
        changes = self._changes
        for key in self._keys[bisect_left(self._keys, first) : bisect_left(self._keys, end)]:
            assert self._changes == changes, f"{self._path} changed while it was iterated"
            yield key, self._values[key]

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        self._mount.check()
        batch = tuple((bytes(k), bytes(v)) for k, v in puts), tuple(map(bytes, deletes))
        both = {key for key, _ in batch[0]}.intersection(batch[1])
        assert not both, f"a key is put and deleted in one batch: {sorted(both)[0]!r}"
        self._states.batches.append(batch)
        self._changes += 1
        for key, value in batch[0]:
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value
        for key in batch[1]:
            if key in self._values:
                del self._keys[bisect_left(self._keys, key)]
                del self._values[key]

    async def flush(self) -> None:
        states = self._states
        target = states.batches_flushed + len(states.batches)
        await self._mount.operate("sync", self._path)
        states.flush(max(0, target - states.batches_flushed))

    def close(self) -> None:
        pass


def _apply(state: dict[bytes, bytes], batch: Batch) -> None:
    state.update(batch[0])
    for key in batch[1]:
        state.pop(key, None)
