"""Forgetting tombstones of ledgers that were deleted long ago: a few thousand in a round.

Twin of `TombstoneSweep` in `bookie.core.garbage`, which says which ones go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice

from bookie.core.garbage import GarbageOptions, TombstoneSweep
from bookie.storage.index.index import Index
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.index.key_value import KeyValue
from bookie.storage.ledger_states import LedgerStates
from bookie.storage.turns import give_way

_KEY = struct.Struct(">cq")
_TIME = struct.Struct(">q")
_FIRST_KEY = _KEY.pack(b"T", 0)
_END_KEY = b"U"
_PER_STEP = 100


class Tombstones:
    """Of one ledger directory."""

    def __init__(
        self,
        index: Index,
        pairs: KeyValue,
        *,
        states: LedgerStates,
        changes: IndexChanges,
        now_ms: Callable[[], int],
        options: GarbageOptions,
    ) -> None:
        self._index = index
        self._pairs = pairs
        self._states = states
        self._changes = changes
        self._now_ms = now_ms
        self._per_round_max = options.tombstones_per_round_max
        self._sweep = TombstoneSweep(options.tombstone_age_ms, options.tombstones_max)
        self._next_key = _FIRST_KEY

    async def forget_old(self) -> None:
        """Goes on where the last round ended. Raises StorageFailed, and BookieIoError if the index
        cannot be read."""
        looked_at = 0
        while looked_at < self._per_round_max:
            step = list(islice(self._pairs.items(self._next_key, _END_KEY), _PER_STEP))
            await self._forget(
                [
                    _KEY.unpack(key)[1]
                    for key, value in step
                    # One that is damaged stays: it still says that the ledger was deleted.
                    if len(value) >= _TIME.size
                    and self._sweep.forgets(_TIME.unpack_from(value)[0], self._now_ms())
                ]
            )
            await give_way()
            looked_at += len(step)
            if len(step) == _PER_STEP:
                self._next_key = step[-1][0] + b"\0"
                continue
            self._next_key = _FIRST_KEY
            if not self._sweep.end_pass():
                return

    async def _forget(self, ledger_ids: list[int]) -> None:
        if not ledger_ids:
            return
        async with self._changes.making("forgetting old tombstones"):
            self._index.forget_tombstones(ledger_ids)
            for ledger_id in ledger_ids:
                self._states.forget(ledger_id)
