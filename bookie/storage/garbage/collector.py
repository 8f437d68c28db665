"""Garbage collection: forgets deleted ledgers and removes entry logs that are not needed any more.

The core is `bookie.core.garbage`. A ledger is deleted only if the metadata store answers so for
this very ledger; an error is never an answer. A log is removed only when the index proves that no
live ledger has entries in it, and only after the index without it is durable.

Each round also forgets a few thousand tombstones of ledgers that were deleted long ago;
`TombstoneSweep` decides which ones.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import trio

from bookie.core.caches import ReadCache, WriteCache
from bookie.core.compaction import CompactionClock, CompactionKind, TokenBucket
from bookie.core.garbage import GarbageOptions, TombstoneSweep, is_droppable, should_seal
from bookie.storage.disk.disk import Disk
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.garbage.compaction_index import CompactionIndex
from bookie.storage.garbage.compactor import Compactor, remove_logs
from bookie.storage.garbage.copy_removal import CopyRemoval, make_in_steps
from bookie.storage.garbage.log_usage import LEDGERS_PER_STEP, is_removable
from bookie.storage.index.index import Index
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.index.key_value import IndexUnreadable, KeyValue
from bookie.storage.ledger_states import LedgerStates
from bookie.storage.metrics import CompactionStatistics, GarbageCollectionReport, GarbageMetrics
from bookie.storage.yielding import yield_to_tasks
from ledger.errors import BookieIoError

_KEY = struct.Struct(">cq")
_TIME = struct.Struct(">q")
_FIRST_KEY = _KEY.pack(b"T", 0)
_END_KEY = b"U"
_PER_STEP = 100


class Tombstones:
    """The tombstones of one ledger directory."""

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
        """Continues where the last round ended. Raises StorageFailed, and BookieIoError if the
        index cannot be read."""
        looked_at = 0
        while looked_at < self._per_round_max:
            step = list(islice(self._pairs.items(self._next_key, _END_KEY), _PER_STEP))
            await self.forget(
                [
                    _KEY.unpack(key)[1]
                    for key, value in step
                    # A damaged one stays: it still records that the ledger was deleted.
                    if len(value) >= _TIME.size
                    and self._sweep.forgets(_TIME.unpack_from(value)[0], self._now_ms())
                ]
            )
            await yield_to_tasks()
            looked_at += len(step)
            if len(step) == _PER_STEP:
                self._next_key = step[-1][0] + b"\0"
                continue
            self._next_key = _FIRST_KEY
            if not self._sweep.end_pass():
                return

    async def forget(self, ledger_ids: list[int]) -> None:
        """Forgets these ledgers, as if they had never been seen. Raises StorageFailed."""
        if not ledger_ids:
            return
        async with self._changes.making("forgetting old tombstones"):
            self._index.forget_tombstones(ledger_ids)
            for ledger_id in ledger_ids:
                self._states.forget(ledger_id)


BATCHES_PER_FLUSH = 2000
"""The index is flushed after this many batches: RocksDB removes deleted pairs only once they are in
a file, and until then every look-up of the next ledger passes over them."""
_ASKS_BURST_S = 0.05
"""How many queries may be sent at once, in seconds of their rate."""


class GarbageCollector:
    """Collects in rounds, one at a time. It may be interrupted after any step: a later round
    repeats it."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        pairs: KeyValue,
        *,
        index: Index,
        logs: EntryLogs,
        states: LedgerStates,
        cache: WriteCache,
        read_cache: ReadCache,
        changes: IndexChanges,
        now_ms: Callable[[], int],
        options: GarbageOptions,
        log_bytes_max: int,
    ) -> None:
        self._index = index
        self._logs = logs
        self._states = states
        self._cache = cache
        self._blocks = read_cache
        self._changes = changes
        self._now_ms = now_ms
        self._options = options
        self._statistics = CompactionStatistics()
        self._compactor = Compactor(
            disk=disk,
            directory=directory,
            index=index,
            compaction_index=CompactionIndex(index, pairs),
            logs=logs,
            changes=changes,
            options=options.compaction,
            log_bytes_max=log_bytes_max,
            statistics=self._statistics,
        )
        self._tombstones = Tombstones(
            index, pairs, states=states, changes=changes, now_ms=now_ms, options=options
        )
        self.copies = CopyRemoval(index, states, cache, read_cache, changes)
        self.metrics = GarbageMetrics()
        self._asked_last = -1
        self._is_unborn: Callable[[int], Awaitable[bool]] | None = None
        self._batches = 0
        """Batches of deletions since the index was flushed."""
        self._asks: TokenBucket | None = None
        self._one_round = trio.Lock()
        self._clock: CompactionClock | None = None
        self._suspended: dict[CompactionKind, None] = {}

    async def collect(
        self,
        is_deleted: Callable[[int], Awaitable[bool]],
        *,
        compaction: CompactionKind = CompactionKind.MAJOR,
        is_forced: bool = False,
        is_unborn: Callable[[int], Awaitable[bool]] | None = None,
    ) -> GarbageCollectionReport:
        """Runs one round. Waits for one that is in progress.

        Args:
            is_deleted: True only if the metadata store has reported that this ledger's own key does
                not exist. An exception means "unknown", and the ledger stays.
            compaction: the most that may be compacted. Removing logs of deleted ledgers takes
                no space on the disk, so NONE is for a disk that is full to the last byte; a
                compaction leaves alone what it has no space to copy.
            is_forced: asks about all ledgers, and compacts now, whatever intervals and
                suspensions say; damaged logs are tried again.
            is_unborn: of a deleted ledger: True only if its id has yet to be generated. Nobody ever
                had the ledger then: a client used the id ahead of its time, and it is forgotten
                together with the key, which a tombstone would hold against the ledger to come.

        Raises StorageFailed if index or entry logs could not be changed: the process must exit.
        """
        async with self._one_round:
            round_ = GarbageCollectionReport()
            self._is_unborn = is_unborn
            started = trio.current_time()
            try:
                with round_.noting_unreadable():
                    await self._collect(round_, is_deleted, compaction, is_forced)
            finally:
                self._statistics.add(round_)
                self.metrics.round_done(
                    trio.current_time() - started,
                    asked=round_.ledgers_asked,
                    deleted=round_.ledgers_deleted,
                    failed=round_.asks_failed,
                    logs_removed=round_.logs_removed,
                )
            return round_

    def compaction_statistics(self) -> CompactionStatistics:
        with suppress(IndexUnreadable):  # then it is as many as were known last
            self._statistics.logs_set_aside = len(self._index.logs_set_aside())
        return replace(self._statistics)

    def suspend(self, kind: CompactionKind) -> None:
        """Suspends compaction of this kind, unless it is forced; one in progress ends soon."""
        self._suspended[kind] = None
        if self._statistics.is_compacting:
            self._compactor.end(kind, f"{kind.name.lower()} compaction was suspended")

    def resume(self, kind: CompactionKind) -> None:
        """Resumes it: it is due again when its interval is over."""
        self._suspended.pop(kind, None)

    def is_suspended(self, kind: CompactionKind) -> bool:
        return kind in self._suspended

    async def _collect(
        self,
        round_: GarbageCollectionReport,
        is_deleted: Callable[[int], Awaitable[bool]],
        compaction: CompactionKind,
        is_forced: bool,
    ) -> None:
        now = trio.current_time()
        if self._clock is None:
            self._clock = CompactionClock(self._options.compaction, now)
        is_all = False
        if is_forced:
            self._asked_last = -1
        sealed: Sequence[int] = ()
        while not is_all:  # a forced round needs space, and not only when all were asked about
            is_all = True
            with round_.noting_unreadable():
                is_all = await self._ask(round_, is_deleted) or not is_forced
            await self._flush_deletions(BATCHES_PER_FLUSH // 10)
            sealed = await self._remove_dead_logs(round_)
        kind = self._clock.due(now, compaction, self._suspended, is_forced=is_forced)
        if kind is not CompactionKind.NONE:
            # A major one tries damaged logs again: what failed may have been a cable.
            is_thorough = is_forced or kind is CompactionKind.MAJOR
            skipped = () if is_thorough else self._index.logs_set_aside()
            await self._compactor.compact(kind, sealed, skipped, round_, is_forced=is_forced)
            if not round_.is_time_up:
                self._clock.done(kind, now)
        await self._tombstones.forget_old()

    async def _ask(
        self, round_: GarbageCollectionReport, is_deleted: Callable[[int], Awaitable[bool]]
    ) -> bool:
        """Asks about the next ledgers, and returns whether the last of all was among them."""
        asked_max, step_max = self._options.ledgers_per_round_max, LEDGERS_PER_STEP
        asked = failures = 0
        while asked < asked_max:
            count_max = min(step_max, asked_max - asked)
            try:
                ledger_ids = self._index.ledger_ids(self._asked_last, count_max)
            except IndexUnreadable:
                if count_max > 1:  # those before the place that cannot be read
                    step_max = 1
                    continue
                self._asked_last = -1
                raise
            for ledger_id in ledger_ids:
                await self._wait_turn()
                try:
                    is_gone = await is_deleted(ledger_id)
                    failures = 0
                except Exception:  # noqa: BLE001 - whatever it is, it is no answer
                    is_gone = False
                    failures += 1
                    round_.asks_failed += 1
                round_.ledgers_asked += 1
                if is_gone:
                    with round_.noting_unreadable():
                        await self._delete(ledger_id)
                        round_.ledgers_deleted += 1
                self._asked_last = ledger_id
                if failures >= self._options.failures_max:
                    return True  # the store does not answer: what is known to be deleted goes first
            await self._flush_deletions(BATCHES_PER_FLUSH)
            asked += len(ledger_ids)
            if len(ledger_ids) < count_max:
                self._asked_last = -1
                return True
            await yield_to_tasks()
        return False

    async def _wait_turn(self) -> None:
        now = trio.current_time()
        if self._asks is None:
            rate = self._options.asks_per_s_max
            self._asks = TokenBucket(rate, rate * _ASKS_BURST_S, now)
        wait_s = self._asks.take(1, now)
        if wait_s > 0:
            await trio.sleep(wait_s)

    async def _delete(self, ledger_id: int) -> None:
        what = f"forgetting ledger {ledger_id}"
        async with self._changes.making(what):
            try:
                state = self._states.get(ledger_id)
            except BookieIoError:
                # Its record is damaged, and none is in memory, or that one would have been found.
                # The ledger is deleted all the same; no client has the key of its tombstone.
                state = None
            master_key = b""
            # First, and at once: no add is accepted any more, so nothing returns to the cache.
            if state is not None:
                master_key = state.master_key
                self._states.deleted(state)
            self._cache.drop_ledger(ledger_id)
        # A large ledger has hundreds of thousands of runs: checkpoints need not wait for all.
        steps = self._index.delete_ledger(ledger_id, master_key, self._now_ms())
        self._batches += await make_in_steps(self._changes, what, steps)
        self._blocks.drop_ledger(ledger_id)
        self._states.drop_deleted(ledger_id)
        if self._is_unborn is not None and await self._is_unborn(ledger_id):
            await self._tombstones.forget([ledger_id])

    async def _flush_deletions(self, batches_min: int) -> None:
        if self._batches >= batches_min:
            async with self._changes.making("making deletions durable"):
                await self._index.flush()
            self._batches = 0

    async def _remove_dead_logs(self, round_: GarbageCollectionReport) -> Sequence[int]:
        """Removes logs in which no ledger has an entry left; returns the other sealed ones."""
        async with self._changes.making("sealing the current entry log"):
            age_s = trio.current_time() - self._logs.current_since
            if age_s >= self._options.seal_age_s and await self._holds_deleted(round_):
                await self._logs.seal()
                # The index knows its ledgers already: runs are only added by checkpoints.
                self._logs.take_sealed()
            # From here on no new run can point into these.
            sealed = [at for at in self._index.log_ids() if at != self._logs.current_id]
        dead = [log_id for log_id in sealed if await self._is_dead(log_id, round_)]
        round_.logs_removed += len(dead)
        round_.bytes_reclaimed_by_deletion += await remove_logs(
            dead, self._index, self._logs, self._changes
        )
        gone = dict.fromkeys(dead)
        return [log_id for log_id in sealed if log_id not in gone]

    async def _holds_deleted(self, round_: GarbageCollectionReport) -> bool:
        every = iter(self._logs.current_ledgers)
        with round_.noting_unreadable():
            while step := list(islice(every, LEDGERS_PER_STEP)):
                if should_seal(dict.fromkeys(step, 0), 0, self._index.has_runs, 0):
                    return True
                await yield_to_tasks()
        return False

    async def _is_dead(self, log_id: int, round_: GarbageCollectionReport) -> bool:
        await yield_to_tasks()  # there may be thousands of logs, all of them alive
        try:
            every = self._index.log_ledger_ids(log_id)
            while step := list(islice(every, LEDGERS_PER_STEP)):
                if not is_droppable(step, self._index.has_runs):
                    return False
                await yield_to_tasks()
        except IndexUnreadable as error:  # the log is not damaged, but it must stay
            round_.unreadable(error)
            return False
        return await is_removable(log_id, self._index, self._logs)
