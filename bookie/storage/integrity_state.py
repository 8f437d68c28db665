"""The record in an index that it may lack entries, and the ledgers in limbo of a directory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from bookie.core.integrity_state import (
    IntegrityState,
    decode_integrity_state,
    encode_integrity_state,
)
from bookie.storage.index.index import Index
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.index.key_value import KeyValue
from bookie.storage.metrics import LimboStatistics
from bookie.storage.yielding import yield_to_tasks
from ledger.core.availability import Range, missing_ranges

_KEY = b"X"
_STEP = 200
_RANGES_PER_STEP = 5000


def read_integrity_state(pairs: KeyValue) -> IntegrityState | None:
    """Returns the record, or None if there is none. Raises BookieIoError."""
    value = pairs.get(_KEY)
    return None if value is None else decode_integrity_state(value)


def write_integrity_state(pairs: KeyValue, state: IntegrityState | None) -> None:
    """Writes the record; None removes it. Durable after a flush. Raises BookieIoError."""
    if state is None:
        pairs.write([], [_KEY])
    else:
        pairs.write([(_KEY, encode_integrity_state(state))])


class DirectoryIntegrity:
    """The integrity state of one ledger directory of a running bookie."""

    def __init__(self, pairs: KeyValue, changes: IndexChanges) -> None:
        self._pairs = pairs
        self._index = Index(pairs)
        self._changes = changes
        self.statistics = LimboStatistics(0 if read_integrity_state(pairs) is None else None)

    @property
    def state(self) -> IntegrityState | None:
        """The record, or None. Raises BookieIoError."""
        return read_integrity_state(self._pairs)

    async def set_state(self, state: IntegrityState | None) -> None:
        """Stores the record durably. Raises StorageFailed."""
        async with self._changes.making("writing what the index does not know"):
            write_integrity_state(self._pairs, state)
            await self._index.flush()
        if state is None:
            self.statistics.ledgers = 0

    async def ledgers_in_limbo(self, after: int, count_max: int) -> list[int]:
        """Returns the next ledgers in limbo, in order, as the index has them. Raises
        BookieIoError."""
        found: list[int] = []
        while len(found) < count_max and (ids := self._index.ledger_ids(after, _STEP)):
            for ledger_id in ids:
                state = self._index.state(ledger_id)
                if state is not None and state.is_limbo:
                    found.append(ledger_id)
            after = ids[-1]
            await yield_to_tasks()
        return found

    async def count_in_limbo(self) -> int:
        """Returns the number of all ledgers in limbo. Raises BookieIoError."""
        count, after = 0, -1
        while ids := await self.ledgers_in_limbo(after, _STEP):
            count += len(ids)
            after = ids[-1]
        return count

    def missing(self, ledger_id: int, expected: Iterable[Range], count_max: int) -> list[Range]:
        """Returns the first ranges, at most `count_max`, that the index does not have; the cache
        may have them. Raises BookieIoError."""
        held = ((run.first, run.last) for run in self._index.runs(ledger_id))
        return list(islice(missing_ranges(expected, held), count_max))
