"""Removes the entries of one ledger from a directory, and keeps the ledger's state.

A copy that is not needed here is not a deleted ledger: it has no tombstone, so it may be copied
here again. Its state stays, because a fence must hold as long as the ledger exists: a writer that
slept through the recovery and the move of its ledger still has this bookie in its ensemble. What is
absent afterwards is unknown, as in limbo: an older metadata may still name this bookie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookie.core.caches import ReadCache, WriteCache
from bookie.core.ledger_state import LedgerState
from bookie.storage.index.index import Index
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.ledger_states import LedgerStates
from bookie.storage.yielding import yield_to_tasks

BATCHES_PER_HOLD = 50
"""Batches of a ledger's runs removed at once while a checkpoint must wait: some 25 ms."""


async def make_in_steps(changes: IndexChanges, what: str, steps: Iterator[None]) -> int:
    """Makes changes of the index, one after the other, and lets checkpoints in between; returns
    their number. Raises StorageFailed."""
    count = 0
    is_more = True
    while is_more:
        async with changes.making(what):
            is_more = False
            for number, _ in enumerate(steps, 1):
                count += 1
                await yield_to_tasks()
                if number == BATCHES_PER_HOLD:
                    is_more = True
                    break
    return count


class CopyRemoval:
    """Removes copies from one ledger directory. Must not run while garbage is collected there."""

    def __init__(
        self,
        index: Index,
        states: LedgerStates,
        cache: WriteCache,
        read_cache: ReadCache,
        changes: IndexChanges,
    ) -> None:
        self._index = index
        self._states = states
        self._cache = cache
        self._blocks = read_cache
        self._changes = changes

    def has_entries(self, ledger_id: int) -> bool:
        """Returns whether any entry of the ledger is here. Raises BookieIoError."""
        return self._cache.holds(ledger_id) or self._index.has_runs(ledger_id)

    def is_arriving(self, ledger_id: int) -> bool:
        """Returns whether entries arrived since the last checkpoint."""
        return self._cache.holds(ledger_id)

    @contextmanager
    def refusing(self, state: LedgerState) -> Iterator[None]:
        """Has no entry accepted for the ledger, and none listed, until the end of the block. The
        caller holds `state`, so that all connections see this one."""
        assert state.is_fenced, "the add path looks at nothing else"
        state.is_leaving = True
        try:
            yield
        finally:
            state.is_leaving = False

    async def remove(self, state: LedgerState) -> None:
        """Removes all entries, inside `refusing`. A crash leaves some of them, in any case those
        in the journals that no checkpoint has stored: it can be repeated. Raises StorageFailed,
        and IndexUnreadable."""
        assert state.is_leaving, "an entry could arrive meanwhile"
        ledger_id = state.ledger_id
        what = f"removing the copy of ledger {ledger_id}"
        state.is_removed = True
        async with self._changes.making(what):
            for _ in self._index.put_states([state]):  # before the first entry is absent
                await yield_to_tasks()
            state.is_stored = True
            self._cache.drop_ledger(ledger_id)
        state.forget_new()  # looked up again if an entry is copied here again
        await make_in_steps(self._changes, what, self._index.delete_runs(ledger_id))
        self._blocks.drop_ledger(ledger_id)

    async def flush(self) -> None:
        """Makes removals durable, so that look-ups pass over them no longer."""
        async with self._changes.making("making removals of copies durable"):
            await self._index.flush()
