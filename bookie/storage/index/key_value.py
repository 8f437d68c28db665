"""The door behind which the index keeps its records: a sorted map of bytes to bytes.

`rocks` is its real side, `bookie.testing.memory_key_value` the one in memory, for tests, and
`bookie.testing.key_value` the simulated one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ledger.errors import BookieIoError

INDEX_CURE = (
    "Cure: see to the disk; if the index is damaged, stop the bookie and make it again: "
    "`ledgerstream bookie rebuild-index CONFIG`"
)


class IndexUnreadable(BookieIoError):
    """Part of the index cannot be read, or is no record of ours. Asking changed nothing, so the
    process may go on; and no entry log is to blame."""


class KeyValue(Protocol):
    """A sorted map of bytes to bytes. Calls are synchronous and quick (memory or block cache);
    `flush` may take long and is awaited. What cannot be read is IndexUnreadable, what cannot be
    written another BookieIoError. What was deleted costs whoever passes over it little, and soon
    nothing. Nothing is durable before `flush` returns; after a
    crash the map is the state at the last flush *or any later one*, never a torn batch."""

    def get(self, key: bytes) -> bytes | None: ...

    def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
        """The pair with the greatest key in [lowest, key], or None."""
        ...

    def items(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with first <= key < end, in order. The map may not change meanwhile."""
        ...

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        """One atomic batch, no key of which is in both; at most a few hundred pairs, because it
        holds the interpreter."""
        ...

    async def flush(self) -> None:
        """Makes all earlier writes durable."""
        ...

    def close(self) -> None: ...
