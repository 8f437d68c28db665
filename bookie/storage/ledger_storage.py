"""The storage engine of one ledger directory: add, read, fence, checkpoint.

What was acknowledged is read back with the same bytes, and a fence holds, over any crash. Adds do
not pass through here (`bookie.core.adds`); `bookie_storage` replays and runs the journals.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import trio

from bookie.core.buffer_pool import SegmentPool
from bookie.core.caches import ReadCache, WriteCache
from bookie.core.capacity import DirectoryCapacity
from bookie.core.disk_space import WriteGate
from bookie.core.journal import Mark
from bookie.core.journal_frames import encode_explicit_lac, encode_fence
from bookie.core.ledger_state import LedgerState
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.checkpoint_scheduler import CheckpointScheduler
from bookie.storage.disk.disk import Buffer, Disk
from bookie.storage.entry_listing import list_entries
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.entry_log.startup_scan import EntryLogInventory
from bookie.storage.entry_reader import EntryReader
from bookie.storage.garbage.collector import GarbageCollector
from bookie.storage.history import History
from bookie.storage.index.index import Index
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.index.key_value import KeyValue
from bookie.storage.integrity_state import DirectoryIntegrity
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.replay import ReplayTarget
from bookie.storage.journal.trimmer import JournalTrimmer
from bookie.storage.ledger_states import LedgerStates
from bookie.storage.metrics import DirectoryStatistics
from bookie.storage.options import StorageOptions, StorageStatistics
from bookie.storage.scrubber import Scrubber
from ledger.core.availability import EntriesHeld
from ledger.errors import NoSuchEntry, NoSuchLedger, UnknownLedgerState


class LedgerStorage:
    """One ledger directory. Call `load`, replay into `replay_target`, `checkpoint`, `task.run`:
    each once, and first. After a failed checkpoint it only raises: the process must exit.
    `number` is its place among the bookie's, from 0; `pairs` its index store."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        number: int,
        pairs: KeyValue,
        trimmer: JournalTrimmer,
        *,
        now_ms: Callable[[], int],
        options: StorageOptions,
        spares: SegmentPool,
    ) -> None:
        self.directory = directory
        self._journals, self.capacity = trimmer.journals, (capacity := DirectoryCapacity())
        self.cache = cache = WriteCache(options.write_cache_bytes // 2, spares, capacity)
        self._read_cache = blocks = ReadCache(options.read_cache_bytes)
        self._index = index = Index(pairs)
        self._logs = logs = EntryLogs(
            disk,
            directory,
            log_bytes_max=options.entry_log_bytes_max,
            flush_bytes=options.flush_entrylog_bytes,
            files_open_max=options.logs_open_max,
        )
        self._states = states = LedgerStates(index, cache, options.states_max, capacity)
        self.states = states.held  # for the add path; `state` also reads the index
        self._reader = EntryReader(cache, blocks, index, logs, read_ahead=options.read_ahead())
        self._checkpointer = checkpoints = Checkpointer(
            disk,
            directory,
            number,
            trimmer=trimmer,
            cache=cache,
            read_cache=blocks,
            index=index,
            logs=logs,
            states=states,
        )
        self.task = task = CheckpointScheduler(checkpoints, capacity, options.checkpoint_interval_s)
        trimmer.join(number, task.ask)
        self.replay_target = ReplayTarget(cache, states)
        changes = IndexChanges(task.writing, task.poison)
        self.history = History(states, index, self._reader, changes)
        self.integrity = DirectoryIntegrity(pairs, changes)
        self.scrubber = Scrubber(disk, index, pairs, logs, changes, options.scrub_bytes_per_s)
        self.garbage = GarbageCollector(
            disk,
            directory,
            pairs,
            index=index,
            logs=logs,
            states=states,
            cache=cache,
            read_cache=blocks,
            changes=changes,
            now_ms=now_ms,
            options=options.garbage,
            log_bytes_max=options.entry_log_bytes_max,
        )
        self.inventory = EntryLogInventory(logs, index, pairs, changes)

    # --- ledgers

    def journal_of(self, ledger_id: int) -> Journal:
        return self._journals[ledger_id % len(self._journals)]

    def state(self, ledger_id: int) -> LedgerState | None:
        """Returns the state of a ledger, from memory or index; None if it was never seen.

        The state of a deleted ledger has `is_deleted`. Raises BookieIoError on a damaged record.
        """
        return self._states.get(ledger_id)

    def create(self, ledger_id: int, master_key: bytes) -> LedgerState:
        """Creates the state of a ledger that was never seen; its first frame in the journal keeps
        the key."""
        return self._states.create(ledger_id, master_key)

    def state_changed(self, state: LedgerState) -> None:
        """Has the next checkpoint store a state whose limbo was set or cleared."""
        self._states.changed(state)

    def fence(self, state: LedgerState, on_durable: Callable[[], None]) -> None:
        """Fences at once. `on_durable` is called when the fence is durable, which may be at
        once."""
        if state.is_fence_durable:
            on_durable()
            return

        def durable() -> None:
            state.is_fence_durable = True
            on_durable()

        journal = self.journal_of(state.ledger_id)
        if state.is_fenced:
            # Its frame is in this group or an earlier one, so it is durable when this one is.
            journal.with_group(on_durable=durable)
        else:
            state.fence()
            self._states.changed(state)
            frame = encode_fence(state.ledger_id, state.master_key)
            journal.queue(frame, on_durable=durable)

    def set_explicit_lac(
        self, state: LedgerState, lac: int, packet: Buffer, on_durable: Callable[[], None] | None
    ) -> None:
        """Stores the writer's LAC packet, unless a higher one is known, and journals it.

        It goes with the next group: a caller that waits for `on_durable` must cause one.
        """
        state.set_explicit_lac(lac, packet)
        self._states.changed(state)
        frame = encode_explicit_lac(state.ledger_id, state.master_key, lac, packet)
        journal = self.journal_of(state.ledger_id)
        journal.queue(frame, on_durable=on_durable, is_urgent=False)

    # --- entries

    def read_cached(self, ledger_id: int, entry_id: int) -> memoryview | None:
        """Returns the entry if it is in memory; None does not mean that it does not exist."""
        return self._reader.read_cached(ledger_id, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> Buffer:
        """Returns the entry as stored.

        Raises:
            NoSuchEntry, NoSuchLedger: it is certainly not stored here.
            UnknownLedgerState: it is not here, but the ledger is in limbo.
            BookieIoError: whether it is stored cannot be decided.
        """
        state = self._live_state(ledger_id)
        entry = await self._reader.read(ledger_id, entry_id)
        return entry if entry is not None else self._absent(state, entry_id)

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_max: int
    ) -> list[Buffer]:
        """Returns consecutive entries from `first` on, at least one; see `EntryReader.read_batch`.
        Raises as `read` does for the first of them; a later failure only ends the batch."""
        state = self._live_state(ledger_id)
        entries = await self._reader.read_batch(ledger_id, first, count_max, size_max)
        return entries or self._absent(state, first)

    def last_entry_id(self, ledger_id: int) -> int:
        """Returns the highest entry id stored here, or -1 (also for limbo, unknown and deleted)."""
        return self._reader.last_entry_id(ledger_id)

    def _live_state(self, ledger_id: int) -> LedgerState:
        state = self.state(ledger_id)
        if state is None or state.is_deleted:
            raise NoSuchLedger(f"ledger {ledger_id} is not on this bookie")
        return state

    def _absent(self, state: LedgerState, entry_id: int) -> NoReturn:
        if state.is_deleted:  # during the read
            raise NoSuchLedger(f"ledger {state.ledger_id} was deleted")
        if state.is_absence_unknown:
            raise UnknownLedgerState(
                f"entry {entry_id} of ledger {state.ledger_id} may have been here"
            )
        raise NoSuchEntry(f"entry {entry_id} of ledger {state.ledger_id} is not on this bookie")

    async def entries_held(self, ledger_id: int) -> EntriesHeld:
        """Returns which entries of the ledger are stored; see `list_entries`. Raises
        BookieIoError."""
        return await list_entries(self.cache, self._index, ledger_id)

    # --- capacity

    @property
    def is_full(self) -> bool:
        """Whether adds must wait: the active half is full and the other one is still being
        flushed."""
        return self.capacity.is_full

    async def wait_capacity(self, gate: WriteGate | None = None) -> None:
        """Returns when adds may continue, or `gate` accepts none. Raises `task.failure` if they
        never may."""
        await self.task.wait_capacity(gate)

    # --- life

    async def load(self) -> bool:
        """Reads the marks and finds the entry logs; returns whether there were marks. Raises
        BookieIoError or OSError. A start that is refused before its first checkpoint, here or in
        the replay, has changed nothing but files that nothing else uses."""
        has_marks = await self._checkpointer.load_marks()
        await self.inventory.find()
        return has_marks

    async def checkpoint(self) -> None:
        """Makes everything that is in memory now durable in entry log and index. Not cancellable:
        half a checkpoint would be a failed one. Raises StorageFailed."""
        with trio.CancelScope(shield=True):
            await self.task.make()
            await self.inventory.settle()  # the journals were replayed

    def close(self) -> None:
        """Closes files and index. Nothing is written: a stop is a crash."""
        self._logs.close()
        self._index.close()

    def statistics(self) -> StorageStatistics:
        return StorageStatistics(
            checkpoints=self.task.checkpoints,
            checkpoint_seconds_last=self.task.seconds_last,
            entries_flushed=self._checkpointer.entries_flushed,
            entry_log_bytes_written=self._logs.bytes_written,
            write_cache_bytes=self.cache.nbytes,
            read_cache_bytes=self._read_cache.nbytes,
            disk_reads=self._reader.disk_reads,
            states=len(self.states),
            frames_replayed=self.replay_target.frames,
            entry_logs=len(self._index.log_ids()),
            entry_logs_missing=self.inventory.missing,
            entry_logs_stray=self._logs.strays_aside,
        )

    def details(self) -> DirectoryStatistics:
        """Returns everything that operators look at."""
        return DirectoryStatistics(
            directory=self.directory,
            write_cache_limit_bytes=2 * self.cache.bytes_max,
            storage=self.statistics(),
            reads=self._reader.metrics.statistics(),
            flushes=self.task.metrics.statistics(),
            garbage=self.garbage.metrics.statistics(),
            compaction=self.garbage.compaction_statistics(),
            scrub=self.scrubber.statistics,
            limbo=self.integrity.statistics,
        )

    @property
    def stored_marks(self) -> Mapping[int, Mark]:
        """The marks where a replay would begin for this directory, by journal number."""
        return self._checkpointer.stored.marks

    @property
    def index_changes(self) -> int:
        """A number that changes whenever the index may hold other ledgers than before."""
        return self.task.checkpoints + self.garbage.metrics.rounds

    def ledger_ids(self, after: int, count_max: int) -> list[int]:
        """Returns up to `count_max` ledgers of the index, in order, after ledger `after`."""
        return self._index.ledger_ids(after, count_max)

    def every_ledger_id(self, first: int) -> Iterator[int]:
        """Yields the ledgers from `first` on, in order, also those that no checkpoint has stored:
        such a one may come twice. Raises BookieIoError."""
        return heapq.merge(self._index.every_ledger_id(first), self._states.changed_ids(first))
