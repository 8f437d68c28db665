"""The storage engine of one ledger directory: add, read, fence, checkpoint, replay.

Answers for what a bookie promised: whatever was acknowledged is read back with the same bytes,
and a fence holds, over any crash. The parts decide how; here is what is called when. Adds do
not pass through here: `bookie.core.adds` writes cache and journal group itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import NoReturn

import trio

from bookie.core.availability import EntriesHeld
from bookie.core.caches import ReadCache, WriteCache
from bookie.core.journal import JournalFailed
from bookie.core.journal_frames import encode_explicit_lac, encode_fence, iterate_frames
from bookie.core.ledger_state import LedgerState
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.checkpoint_task import CheckpointTask
from bookie.storage.disk import Buffer, Disk
from bookie.storage.entry_listing import list_entries
from bookie.storage.entry_log import EntryLogs
from bookie.storage.entry_reads import EntryReader
from bookie.storage.garbage_collector import Collected, GarbageCollector
from bookie.storage.index import Index, KeyValue
from bookie.storage.journal import Journal
from bookie.storage.ledger_states import LedgerStates
from bookie.storage.replay import replay_frame
from bookie.storage.settings import StorageFailed, StorageOptions, StorageStatistics
from ledger.errors import FinalError, NoSuchEntry, NoSuchLedger, UnknownLedgerState


class LedgerStorage:
    """`start`, then `run` once; no call but `start` before that.

    After a failure (of the journal or of a checkpoint) `run` raises, and nothing more is
    acknowledged: the process must exit. Starting is always replaying.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        pairs: KeyValue,
        journal: Journal,
        *,
        now_ms: Callable[[], int],
        options: StorageOptions | None = None,
    ) -> None:
        """`pairs` is the index store that belongs to `directory`; `journal` is not replayed."""
        options = options or StorageOptions()
        self.journal = journal
        self.now_ms = now_ms
        self.cache = cache = WriteCache(options.write_cache_bytes // 2)
        self._read_cache = blocks = ReadCache(options.read_cache_bytes)
        self._index = index = Index(pairs)
        self._logs = logs = EntryLogs(disk, directory, log_bytes_max=options.entry_log_bytes_max)
        self._states = states = LedgerStates(index, cache, options.states_max)
        self.states = states.held
        """States in memory, for the add path; `state` also asks the index."""
        self._reader = EntryReader(
            cache, blocks, index, logs, read_ahead_bytes=options.read_ahead_bytes
        )
        self._checkpointer = Checkpointer(
            disk,
            directory,
            journal=journal,
            cache=cache,
            read_cache=blocks,
            index=index,
            logs=logs,
            states=states,
        )
        self._task = CheckpointTask(self._checkpointer, options.checkpoint_interval_s)
        self._garbage = GarbageCollector(
            index=index,
            logs=logs,
            states=states,
            cache=cache,
            read_cache=blocks,
            writing=self._task.writing,
            now_ms=now_ms,
            options=options.garbage,
        )
        self._frames_replayed = 0
        self._logs_missing = 0

    # --- ledgers

    def state(self, ledger_id: int) -> LedgerState | None:
        """What is known of a ledger, from memory or index; None if it was never seen.

        The state of a deleted ledger has `is_deleted`. Raises BookieIoError on a damaged record.
        """
        return self._states.get(ledger_id)

    def create(self, ledger_id: int, master_key: bytes) -> LedgerState:
        """The state of a ledger seen for the first time. The key becomes durable with the
        first frame that is journaled for the ledger."""
        return self._states.create(ledger_id, master_key)

    def state_changed(self, state: LedgerState) -> None:
        """Limbo was set or cleared: the next checkpoint stores it."""
        self._states.changed(state)

    def fence(self, state: LedgerState, on_durable: Callable[[], None]) -> None:
        """Fences at once; `on_durable` is called when the fence is durable, maybe at once."""
        if state.is_fence_durable:
            on_durable()
            return

        def durable() -> None:
            state.is_fence_durable = True
            on_durable()

        group = self.journal.open_group
        if state.is_fenced:
            # Its frame is in this group or an earlier one, so it is durable when this one is.
            group.on_durable.append(durable)
        else:
            state.fence()
            self._states.changed(state)
            group.add(encode_fence(state.ledger_id, state.master_key), durable)
        self.journal.kick()

    def set_explicit_lac(
        self, state: LedgerState, lac: int, packet: Buffer, on_durable: Callable[[], None] | None
    ) -> None:
        """Stores the writer's LAC packet, unless a higher one is known, and journals it.

        Without `on_durable` nobody waits: it goes with the next group, and costs no sync.
        """
        state.set_explicit_lac(lac, packet)
        self._states.changed(state)
        frame = encode_explicit_lac(state.ledger_id, state.master_key, lac, packet)
        self.journal.open_group.add(frame, on_durable)
        if on_durable is not None:
            self.journal.kick()

    # --- entries

    def read_cached(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """The entry if it is in memory; None says nothing about whether it exists."""
        return self._reader.read_cached(ledger_id, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> Buffer:
        """The entry as stored.

        Raises:
            NoSuchEntry, NoSuchLedger: it is surely not stored here.
            UnknownLedgerState: it is not here, but the ledger is in limbo.
            BookieIoError: any doubt.
        """
        state = self._live_state(ledger_id)
        entry = await self._reader.read(ledger_id, entry_id)
        return entry if entry is not None else self._absent(state, entry_id)

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_max: int
    ) -> list[Buffer]:
        """Consecutive entries from `first` on, at least one; see `EntryReader.read_batch`.
        Raises as `read` does for the first of them; later ones only end the batch."""
        state = self._live_state(ledger_id)
        entries = await self._reader.read_batch(ledger_id, first, count_max, size_max)
        return entries or self._absent(state, first)

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id stored here, or -1 (also for limbo, unknown and deleted)."""
        return self._reader.last_entry_id(ledger_id)

    def _live_state(self, ledger_id: int) -> LedgerState:
        state = self._states.get(ledger_id)
        if state is None or state.is_deleted:
            raise NoSuchLedger(f"ledger {ledger_id} is not on this bookie")
        return state

    def _absent(self, state: LedgerState, entry_id: int) -> NoReturn:
        if state.is_deleted:  # while the read waited
            raise NoSuchLedger(f"ledger {state.ledger_id} was deleted")
        if state.is_limbo:
            raise UnknownLedgerState(
                f"entry {entry_id} of ledger {state.ledger_id} may have been lost by this bookie"
            )
        raise NoSuchEntry(f"entry {entry_id} of ledger {state.ledger_id} is not on this bookie")

    async def entries_held(self, ledger_id: int) -> EntriesHeld:
        """Which entries of the ledger are here; see `entry_listing`. Raises BookieIoError."""
        return await list_entries(self.cache, self._index, ledger_id)

    # --- room

    @property
    def is_full(self) -> bool:
        """Adds must wait: the active half is full and the other is still being flushed.

        Ask after each chunk of adds: asking also wakes the checkpoint task when it is time.
        """
        return self._task.is_full

    async def wait_room(self) -> None:
        """Returns when adds may go on. Raises StorageFailed or JournalFailed if never."""
        await self._task.wait_room()

    # --- life

    @property
    def failure(self) -> FinalError | None:
        """Why the storage is poisoned: StorageFailed or JournalFailed, or None."""
        return self._task.failure

    async def start(self) -> None:
        """Replays the journal and makes a checkpoint of it.

        Raises JournalCorrupt, BookieIoError, StorageFailed or OSError: the bookie must not
        start.
        """
        mark = await self._checkpointer.load_mark()
        await self._find_logs()
        async with aclosing(self.journal.replay(mark)) as payloads:
            async for payload in payloads:
                for frame in iterate_frames(payload):
                    replay_frame(frame, self.cache, self._states)
                    self._frames_replayed += 1
                    if self._checkpointer.is_due:
                        await self._task.make(moves_mark=False)
        await self._task.make()

    async def _find_logs(self) -> None:
        found = await self._logs.start()
        indexed = self._index.log_ids()
        for log_id in found:
            if log_id not in indexed:  # written, but no checkpoint finished; or half removed
                await self._logs.remove(log_id)
        self._logs_missing = sum(log_id not in found for log_id in indexed)
        if indexed:
            self._logs.skip_ids(indexed[-1])

    async def run(self) -> None:
        """Journal and checkpoints until cancelled. Raises JournalFailed or StorageFailed."""

        async def guarded(task: Callable[[], Awaitable[None]]) -> None:
            try:
                await task()
            except (JournalFailed, StorageFailed) as error:
                self._task.poison(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(guarded, self.journal.run)
            nursery.start_soon(guarded, self._task.run)
        if self.failure is not None:
            raise self.failure

    async def checkpoint(self) -> None:
        """Makes all that is in memory now durable in entry log and index. Not cancellable:
        half a checkpoint would be a failed one. Raises StorageFailed."""
        with trio.CancelScope(shield=True):
            await self._task.make()

    async def collect_garbage(self, is_deleted: Callable[[int], Awaitable[bool]]) -> Collected:
        """One round of garbage collection; see `GarbageCollector.collect`."""
        return await self._garbage.collect(is_deleted)

    def close(self) -> None:
        """Closes files and index. Nothing is written: stopping is crashing."""
        self._logs.close()
        self._index.close()

    def statistics(self) -> StorageStatistics:
        return StorageStatistics(
            checkpoints=self._task.checkpoints,
            checkpoint_seconds_last=self._task.seconds_last,
            entries_flushed=self._checkpointer.entries_flushed,
            entry_log_bytes_written=self._logs.bytes_written,
            write_cache_bytes=self.cache.nbytes,
            read_cache_bytes=self._read_cache.nbytes,
            disk_reads=self._reader.disk_reads,
            states=len(self.states),
            frames_replayed=self._frames_replayed,
            entry_logs=len(self._index.log_ids()),
            entry_logs_missing=self._logs_missing,
        )
