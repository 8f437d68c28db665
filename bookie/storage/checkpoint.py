"""Makes a checkpoint: writes the write cache to entry log and index, then moves the journals'
marks.

The order is the guarantee: marks and caches are taken with no await between; runs are durable
before the index points to them; the index is durable before the marks move; the marks are durable
before journal files are trimmed. Any failure poisons: what is on disk is then unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import trio

from bookie.core.caches import Half, ReadCache, WriteCache
from bookie.core.disk_space import checkpoint_bytes
from bookie.core.duty_cycle import checkpoint_duty_cycle
from bookie.core.entry_log import flush_steps
from bookie.core.journal import Mark
from bookie.core.ledger_state import LedgerState
from bookie.core.marks import StoredMarks, decode_marks, encode_marks
from bookie.storage.disk.disk import Disk
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.index.index import Index, PlacedRun
from bookie.storage.index.key_value import IndexDamaged
from bookie.storage.journal.trimmer import JournalTrimmer
from bookie.storage.ledger_states import LedgerStates
from bookie.storage.metrics import FlushMetrics, timed
from bookie.storage.options import MarkDamaged
from bookie.storage.yielding import yield_to_tasks
from ledger.errors import BookieIoError


class Checkpointer:
    """Makes checkpoints, one at a time; the caller holds the storage's write lock."""

    _FREE_ENTRIES = 2000
    _SMALL_RUNS = 10
    """Up to this number of runs in a step are small ones. With large ones each step writes, and
    other tasks run meanwhile."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        number: int,
        *,
        trimmer: JournalTrimmer,
        cache: WriteCache,
        read_cache: ReadCache,
        index: Index,
        logs: EntryLogs,
        states: LedgerStates,
    ) -> None:
        """`number`: the place of this directory among the bookie's. `trimmer`: of the journals."""
        self._disk = disk
        self._directory = directory
        self._mark_path = f"{directory}/lastmark"
        self._trimmer = trimmer
        layout = trimmer.layout
        self._journals = {no: trimmer.journals[no] for no in layout.journals_of(number)}
        self._number = number
        self._cache = cache
        self._blocks = read_cache
        self._index = index
        self._logs = logs
        self._states = states
        self.stored = self._numbered(0, layout.first_marks(number))
        self.entries_flushed = 0
        self._began_at = 0.0
        self._leisure_s = 0.0
        self.metrics = FlushMetrics()

    def _numbered(self, checkpoint_no: int, marks: Mapping[int, Mark]) -> StoredMarks:
        return self._trimmer.layout.to_store(self._number, checkpoint_no, marks)

    async def load_marks(self) -> bool:
        """Reads where replay begins; without the file, that is the beginning, or where the
        directory was added. Returns whether there is the file. Raises BookieIoError if index or
        directory do not match it."""
        try:
            data = await self._disk.read_file(self._mark_path)
        except FileNotFoundError:
            self._trimmer.loaded(self._number, self.stored.marks)
            return False
        # A process killed after the rename may have left the new name in memory only. Journal files
        # are trimmed because of this mark, so a loss of power must not restore an older one.
        await self._disk.sync_directory(self._directory)
        try:
            found = decode_marks(data)
        except ValueError as error:
            raise MarkDamaged(
                f"{self._mark_path}: {error}. Cure: remove the file if the journal is whole from "
                "its first file on; else set this bookie's directories aside and replicate"
            ) from error
        try:
            found = self._trimmer.layout.check_marks(self._number, found)
        except ValueError as error:
            raise BookieIoError(f"{self._mark_path}: {error}") from error
        indexed = self._index.checkpoint_no
        if indexed < found.checkpoint_no:
            raise IndexDamaged(
                f"the index has checkpoint {indexed}, but {self._mark_path} says "
                f"{found.checkpoint_no}: the index directory is not the one that was used "
                "last. Cure: restore it; or rebuild one from the entry logs: `ledgerstream bookie "
                "rebuild-index CONFIG`"
            )
        self.stored = found
        self._trimmer.loaded(self._number, found.marks)
        return True

    @property
    def has_work(self) -> bool:
        return (
            bool(self._cache.active)
            or self._cache.has_released
            or self._states.has_changes
            or any(journal.mark > self.stored.marks[no] for no, journal in self._journals.items())
        )

    @property
    def bytes_to_write(self) -> int:
        """The largest number of bytes that the next checkpoint writes to the disk."""
        logs = self._logs
        sealed = sum(map(len, logs.sealed_ledgers.values()))
        return checkpoint_bytes(
            self._cache.nbytes,
            states=self._states.changes,
            ledgers=len(self._cache.active),
            log_ledgers=len(logs.current_ledgers) + sealed,
        )

    async def make(self, *, moves_mark: bool, on_swapped: trio.Event, leisure_s: float = 0) -> None:
        """Makes one checkpoint. `on_swapped` is set as soon as the cache has capacity again.

        `moves_mark` is False during replay: the journals must keep what is being read. `leisure_s`:
        how long it may run in the background, unless memory fills.
        """
        self._began_at, self._leisure_s = trio.current_time(), leisure_s
        # No await between these three: an add enters the cache before the journal, so all that is
        # durable before a mark is in the half that is swapped out, or was flushed before.
        marks = {no: journal.mark for no, journal in self._journals.items()}
        changed = self._states.take_changed()
        metrics = self.metrics
        metrics.flushing_bytes = self._cache.nbytes
        self._cache.swap()
        on_swapped.set()
        half = self._cache.flushing
        assert half is not None
        has_news = bool(half or changed)
        runs: list[PlacedRun] = []
        if has_news:
            metrics.nbytes.observe(metrics.flushing_bytes)
            with timed(metrics.entry_log_seconds):
                runs = await self._write_runs(half)
                await self._logs.sync()
            with timed(metrics.index_seconds):
                await self._write_index(half, changed, runs)
            self._index.checkpoint_no += 1
        checkpoint_no = self._index.checkpoint_no
        await self._free(half, runs, self._cache.flushed())
        metrics.flushing_bytes = 0
        # Even if nothing changed: what garbage collection wrote must survive a crash once the
        # journal is gone. It costs nothing if there is nothing.
        await self._index.flush()
        self._states.saved()
        if moves_mark and marks != self.stored.marks:
            stored = self._numbered(checkpoint_no, marks)
            for no, mark in marks.items():
                assert mark >= self.stored.marks[no], f"mark of journal {no} would go backwards"
            await self._disk.replace_file(self._mark_path, encode_marks(stored))
            self.stored = stored
            await self._trimmer.stored(self._number, marks)

    async def _yield(self) -> None:
        filled = max(self._cache.active_filled, self._states.changes_filled)
        lasts_s = trio.current_time() - self._began_at
        await yield_to_tasks(checkpoint_duty_cycle(filled, lasts_s, self._leisure_s))

    async def _write_runs(self, half: Half) -> list[PlacedRun]:
        placed: list[PlacedRun] = []
        for runs in flush_steps(half, self._cache.segments):
            for run in runs:
                placed.append(await self._logs.append(run))
                self.entries_flushed += len(run.lengths)
            if len(runs) < self._SMALL_RUNS:
                await trio.lowlevel.checkpoint()
            else:
                await self._yield()
        return placed

    async def _write_index(
        self, half: Half, changed: dict[int, LedgerState], runs: list[PlacedRun]
    ) -> None:
        # Before any run that points into these logs: a log without this record may be removed.
        logs = self._logs.take_sealed()
        if self._logs.current_id is not None:
            logs[self._logs.current_id] = self._logs.current_ledgers
        for log_id, ledgers in logs.items():
            for _ in self._index.put_log_ledgers(log_id, ledgers):
                await self._yield()
        first_seen: set[int] = set()
        for _ in self._index.put_states(self._states_to_store(half, changed, first_seen)):
            await self._yield()
        for overwritten in self._index.put_runs(runs, first_seen):
            if overwritten is not None:
                self._blocks.drop_ledger(overwritten)
            await self._yield()

    def _states_to_store(
        self, half: Half, changed: dict[int, LedgerState], first_seen: set[int]
    ) -> Iterator[LedgerState]:
        """Yields the changed states, and those of all ledgers with new entries, because of their
        LAC. Those that have no record in the index yet are added to `first_seen`."""
        for state in changed.values():
            if not state.is_stored:
                first_seen.add(state.ledger_id)
                state.is_stored = True
            yield state
        for ledger_id in half:
            if ledger_id not in changed:
                known = self._states.get(ledger_id)
                assert known is not None, f"entries of ledger {ledger_id} without a state"
                yield known

    async def _free(self, half: Half, runs: list[PlacedRun], segments: list[memoryview]) -> None:
        """Frees a million ints and a hundred MiB in steps: at once it would delay acknowledgements
        by tens of milliseconds. With many ledgers there are as many runs."""
        while runs:
            del runs[-self._FREE_ENTRIES :]
            await self._yield()
        while segments:
            self._cache.spares.give_back(segments.pop())
            await self._yield()
        freed = 0
        while half:
            _, entries = half.popitem()
            while len(entries) > self._FREE_ENTRIES:
                for _ in range(self._FREE_ENTRIES):
                    entries.popitem()
                await self._yield()
            freed += len(entries) + 10
            if freed > self._FREE_ENTRIES:
                freed = 0
                await self._yield()
