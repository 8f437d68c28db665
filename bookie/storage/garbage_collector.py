"""Garbage collection: forgets deleted ledgers and removes entry logs nobody needs.

Twin of `bookie.core.garbage`. A ledger is deleted only if somebody who knows answers so for
this very ledger; an error is never an answer. A log goes only when the index proves that no
living ledger has entries in it, and only after the index without it is durable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio

from bookie.core.caches import ReadCache, WriteCache
from bookie.core.garbage import GarbageOptions, is_droppable, should_seal, tombstones_to_forget
from bookie.storage.entry_log import EntryLogs
from bookie.storage.index import Index
from bookie.storage.ledger_states import LedgerStates


@dataclass(frozen=True, slots=True)
class Collected:
    """What one round did."""

    ledgers_asked: int
    ledgers_deleted: int
    asks_failed: int
    """Asked without an answer; these ledgers were left alone."""
    logs_removed: int


class GarbageCollector:
    """Collects in rounds. Each step is safe to stop after: a later round does it again."""

    def __init__(
        self,
        *,
        index: Index,
        logs: EntryLogs,
        states: LedgerStates,
        cache: WriteCache,
        read_cache: ReadCache,
        writing: Callable[[], AbstractAsyncContextManager[None]],
        now_ms: Callable[[], int],
        options: GarbageOptions,
    ) -> None:
        """`writing` keeps checkpoints out while the index changes."""
        self._index = index
        self._logs = logs
        self._states = states
        self._cache = cache
        self._blocks = read_cache
        self._writing = writing
        self._now_ms = now_ms
        self._options = options
        self._asked_last = -1

    async def collect(self, is_deleted: Callable[[int], Awaitable[bool]]) -> Collected:
        """One round.

        Args:
            is_deleted: True only if the metadata store said that this ledger's own key is not
                there. An exception means "not known", and the ledger stays.
        """
        ledger_ids = self._index.ledger_ids(self._asked_last, self._options.ledgers_per_round_max)
        deleted = failed = 0
        for ledger_id in ledger_ids:
            try:
                is_gone = await is_deleted(ledger_id)
            except Exception:  # noqa: BLE001 - whatever it is, it is no answer
                is_gone = False
                failed += 1
            if is_gone:
                await self._delete(ledger_id)
                deleted += 1
            self._asked_last = ledger_id
            await trio.sleep(1 / self._options.asks_per_s_max)
        if len(ledger_ids) < self._options.ledgers_per_round_max:
            self._asked_last = -1
        logs_removed = await self._remove_logs()
        await self._forget_tombstones()
        return Collected(len(ledger_ids), deleted, failed, logs_removed)

    async def _delete(self, ledger_id: int) -> None:
        async with self._writing():
            state = self._states.get(ledger_id)
            assert state is not None, f"ledger {ledger_id} is in the index but has no state"
            # First, at once: no add is taken any more, so nothing comes back into the cache.
            self._states.deleted(state)
            self._cache.drop_ledger(ledger_id)
            for _ in self._index.delete_ledger(ledger_id, state.master_key, self._now_ms()):
                await trio.lowlevel.checkpoint()
            self._blocks.drop_ledger(ledger_id)

    async def _remove_logs(self) -> int:
        async with self._writing():
            is_alive = self._index.has_state
            age_s = trio.current_time() - self._logs.current_since
            ledgers = self._logs.current_ledgers
            if should_seal(ledgers, age_s, is_alive, self._options.seal_age_s):
                await self._logs.seal()
                # The index knows its ledgers already: runs are only added by checkpoints.
                self._logs.take_sealed()
            dead: list[int] = []
            for log_id in self._index.log_ids():
                await trio.lowlevel.checkpoint()
                if log_id != self._logs.current_id and is_droppable(
                    self._index.log_ledgers(log_id), is_alive
                ):
                    dead.append(log_id)
            if not dead:
                return 0
            for log_id in dead:
                self._index.delete_log(log_id)
            await self._index.flush()
            for log_id in dead:
                await self._logs.remove(log_id)
            return len(dead)

    async def _forget_tombstones(self) -> None:
        async with self._writing():
            forgotten = tombstones_to_forget(
                self._index.tombstones(),
                self._now_ms(),
                self._options.tombstone_age_ms,
                self._options.tombstones_max,
            )
            self._index.forget_tombstones(forgotten)
            for ledger_id in forgotten:
                self._states.forget(ledger_id)
