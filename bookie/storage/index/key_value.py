"""The interface to the store of the index: a sorted map of bytes to bytes.

`rocksdb` is the real store, `bookie.testing.memory_key_value` the one in memory, for tests, and
`bookie.testing.key_value` the simulated one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ledger.errors import BookieIoError

INDEX_CURE = (
    "Cure: check the disk; if the index is damaged, stop the bookie and rebuild it: "
    "`ledgerstream bookie rebuild-index CONFIG`"
)


class IndexUnreadable(BookieIoError):
    """Part of the index cannot be read, or is no valid record. The read changed nothing, so the
    process may continue; and no entry log is damaged because of it."""


class IndexDamaged(BookieIoError):
    """The files of the store are damaged or missing, so that it can only be rebuilt."""


class KeyValue(Protocol):
    """A sorted map of bytes to bytes. Calls are synchronous and quick (memory or block cache);
    `flush` may take long and is awaited. What cannot be read is IndexUnreadable, what cannot be
    written another BookieIoError. Deleted pairs cost a scan that passes over them little, and soon
    nothing. Nothing is durable before `flush` returns; after a crash the map is the state at the
    last flush *or any later one*, never a torn batch."""

    def get(self, key: bytes) -> bytes | None: ...

    def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
        """Returns the pair with the greatest key in [lowest, key], or None."""
        ...

    def items(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields pairs with first <= key < end, in order. The map may not change meanwhile."""
        ...

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        """Writes one atomic batch, no key of which is in both; at most a few hundred pairs, because
        it holds the interpreter."""
        ...

    async def flush(self) -> None:
        """Makes all earlier writes durable."""
        ...

    def close(self) -> None: ...
