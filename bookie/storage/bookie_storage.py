"""All journals and ledger directories of a bookie: starts, runs and ends them, and maps ledgers to
them.

Ledger `l` has its frames in journal `l mod journals`, and its entries in the directory that its id
gives: `l mod directories`, if the list was never changed. Operations on one ledger are passed to
its directory; this module only finds it. The pure cores are `bookie.core.marks` and
`bookie.core.directories`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import trio

from bookie.core.buffer_pool import SegmentPool
from bookie.core.capacity import Capacity
from bookie.core.compaction import CompactionKind
from bookie.core.disk_space import WriteGate
from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.core.journal import BEGINNING, JournalFailed, Mark, file_name
from bookie.core.ledger_state import LedgerState
from bookie.core.marks import DirectoryMap
from bookie.storage.disk.disk import Buffer, Disk
from bookie.storage.entry_log.startup_scan import count_journal_frames
from bookie.storage.index.key_value import IndexDamaged, IndexUnreadable, KeyValue
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.replay import replay_journal
from bookie.storage.journal.trimmer import JournalTrimmer
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.metrics import GarbageCollectionReport
from bookie.storage.options import (
    DirectoryDamaged,
    MarkDamaged,
    StorageFailed,
    StorageOptions,
    StorageStatistics,
)
from ledger.core.availability import EntriesHeld
from ledger.errors import FinalError

_log = logging.getLogger(__name__)

HasSpace = Callable[[str, int], Awaitable[bool]]


@contextmanager
def _damage_of(number: int) -> Iterator[None]:
    """Raises DirectoryDamaged for damage that is in directory `number` alone."""
    try:
        yield
    except (MarkDamaged, IndexDamaged, IndexUnreadable) as error:
        raise DirectoryDamaged(number, error) from error
    except StorageFailed as error:
        if isinstance(error.__cause__, IndexDamaged | IndexUnreadable):
            raise DirectoryDamaged(number, error.__cause__) from error
        raise


@contextmanager
def _closing_after_failure(pairs: KeyValue) -> Iterator[None]:
    try:
        yield
    except BaseException:
        pairs.close()
        raise


class Shard(NamedTuple):
    """The journal and directory of ledgers; for the add path."""

    journal_no: int
    directory_no: int
    journal: Journal
    directory: LedgerStorage


class BookieStorage:
    """The storage of a bookie. Call `start`, then `run` once; nothing else before `start`.

    After a failure of any journal or directory `run` raises, and nothing more is acknowledged: the
    process must exit. Every start replays the journals.
    """

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str],
        key_value: Callable[[str], KeyValue],
        journals: Sequence[Journal],
        *,
        now_ms: Callable[[], int],
        options: StorageOptions | None = None,
        layout: DirectoryMap | None = None,
        gate: WriteGate | None = None,
        has_space: HasSpace | None = None,
    ) -> None:
        """`key_value` opens the index store at a path, one in each of `directories`. `journals` are
        not replayed yet. `options`: of all directories together. `layout`: which ledgers are in
        each; None: the list was never changed. `gate`: what the bookie accepts.
        `has_space`: see `CheckpointScheduler.has_space`, called with the directory first."""
        options = (options or StorageOptions()).divided(len(directories))
        self.layout = layout = layout or DirectoryMap(len(journals), len(directories))
        self.journals = tuple(journals)
        self._disk = disk
        self.now_ms = now_ms
        self.gate = gate or WriteGate()
        self.segments = segments = SegmentPool()
        """Buffers that connections receive into."""
        self._trimmer = trimmer = JournalTrimmer(layout, self.journals)
        opened: list[LedgerStorage] = []
        try:
            for number, path in enumerate(directories):
                with _damage_of(number):
                    pairs = key_value(f"{path}/index")
                    with _closing_after_failure(pairs):
                        directory = LedgerStorage(
                            disk, path, number, pairs, trimmer,
                            now_ms=now_ms, options=options, spares=segments,
                        )  # fmt: skip
                opened.append(directory)
                if has_space is not None:
                    opened[-1].task.has_space = partial(has_space, path)
        except BaseException:
            for directory in opened:
                directory.close()
            raise
        self.directories = tuple(opened)
        self.capacity = Capacity(
            self.gate,
            [directory.capacity for directory in opened],
            [journal.capacity for journal in self.journals],
        )
        """Flags that say whether more can be taken."""
        self.shards = tuple(
            Shard(journal, directory, self.journals[journal], opened[directory])
            for journal, directory in layout.pairs
        )
        """By number of the shard."""
        self.shard_of = layout.shard_of
        """Returns the number of the shard of a ledger."""
        self._failure: FinalError | None = None

    @property
    def checkpoints(self) -> int:
        """How many were made since the start. Without entries none is made."""
        return sum(directory.task.checkpoints for directory in self.directories)

    def every_ledger_id(self, first: int) -> Iterator[int]:
        """Yields the ledgers from `first` on, in order, each once. Raises BookieIoError."""
        before = -1
        for ledger_id in heapq.merge(*(each.every_ledger_id(first) for each in self.directories)):
            if ledger_id != before:
                yield ledger_id
            before = ledger_id

    # --- by ledger

    def directory_of(self, ledger_id: int) -> LedgerStorage:
        directories = self.directories
        if len(directories) == 1:
            return directories[0]
        return self.shards[self.shard_of(ledger_id)].directory

    def journal_of(self, ledger_id: int) -> Journal:
        journals = self.journals
        return journals[ledger_id % len(journals)]

    def state(self, ledger_id: int) -> LedgerState | None:
        """See `LedgerStorage.state`; the same holds for the methods below."""
        return self.directory_of(ledger_id).state(ledger_id)

    def create(self, ledger_id: int, master_key: bytes) -> LedgerState:
        return self.directory_of(ledger_id).create(ledger_id, master_key)

    def state_changed(self, state: LedgerState) -> None:
        self.directory_of(state.ledger_id).state_changed(state)

    def copied_again(self, ledger_id: int) -> None:
        """Records that entries of a ledger arrive whose copy was removed from here, if it was."""
        state = self.state(ledger_id)
        if state is not None and state.is_removed:
            state.is_removed = False
            self.state_changed(state)

    def fence(self, state: LedgerState, on_durable: Callable[[], None]) -> None:
        self.directory_of(state.ledger_id).fence(state, on_durable)

    def set_explicit_lac(
        self, state: LedgerState, lac: int, packet: Buffer, on_durable: Callable[[], None] | None
    ) -> None:
        self.directory_of(state.ledger_id).set_explicit_lac(state, lac, packet, on_durable)

    def read_cached(self, ledger_id: int, entry_id: int) -> memoryview | None:
        return self.directory_of(ledger_id).read_cached(ledger_id, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> Buffer:
        return await self.directory_of(ledger_id).read(ledger_id, entry_id)

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_max: int
    ) -> list[Buffer]:
        directory = self.directory_of(ledger_id)
        return await directory.read_batch(ledger_id, first, count_max, size_max)

    def last_entry_id(self, ledger_id: int) -> int:
        return self.directory_of(ledger_id).last_entry_id(ledger_id)

    async def entries_held(self, ledger_id: int) -> EntriesHeld:
        return await self.directory_of(ledger_id).entries_held(ledger_id)

    # --- capacity

    @property
    def is_full(self) -> bool:
        """Whether adds must wait because a directory has no capacity; see `Capacity.is_full`."""
        return self.capacity.is_full

    async def wait_capacity(self) -> None:
        """Returns when adds may continue. Raises StorageFailed or JournalFailed if they never
        may."""
        for directory in self.directories:
            if directory.is_full:
                await directory.wait_capacity(self.gate)

    @property
    def queued_bytes(self) -> int:
        """The bytes of frames that are not durable yet, in all journals."""
        if len(self.journals) == 1:
            return self.journals[0].queued_bytes
        return sum(journal.queued_bytes for journal in self.journals)

    @property
    def queued_callbacks(self) -> int:
        """The number of callbacks that wait for the next groups of all journals."""
        if len(self.journals) == 1:
            return self.journals[0].queued_callbacks
        return sum(journal.queued_callbacks for journal in self.journals)

    # --- life

    @property
    def failure(self) -> FinalError | None:
        """The reason why the storage is poisoned: StorageFailed or JournalFailed, or None."""
        if self._failure is None:
            return next((one.task.failure for one in self.directories if one.task.failure), None)
        return self._failure

    async def start(self) -> None:
        """Replays the journals and makes checkpoints of what they held.

        Raises JournalCorrupt, BookieIoError, StorageFailed or OSError: the bookie must not start;
        if it is DirectoryDamaged, a new object may after that directory was repaired.
        """
        for number, directory in enumerate(self.directories):
            with _damage_of(number):
                await self._check_marks(directory, is_stored=await directory.load())
        await self._settle_logs()

        async def make_room(number: int) -> None:
            with _damage_of(number):
                await self.directories[number].task.make(moves_mark=False)

        def on_progress(number: int) -> Awaitable[None] | None:
            return make_room(number) if self.directories[number].task.is_due else None

        targets = [directory.replay_target for directory in self.directories]
        for number, journal in enumerate(self.journals):
            marks = dict(self._trimmer.marks_of(number))
            await replay_journal(journal, number, self.layout, marks, targets, on_progress)
            if journal.end.lost is not None:
                await self._require_integrity_check(number, journal.end.lost, journal.mark)
        for number, directory in enumerate(self.directories):
            directory.history.end_replay()
            with _damage_of(number):
                await directory.checkpoint()

    async def _check_marks(self, directory: LedgerStorage, *, is_stored: bool) -> None:
        """Checks that the journals still have their beginnings for a directory without marks."""
        for journal_no, mark in directory.stored_marks.items():
            journal = self.journals[journal_no]
            if mark != BEGINNING and is_stored:
                continue
            if (first := await journal.first_file_id()) > max(1, mark.file_id):
                raise MarkDamaged(
                    f"{directory.directory}/lastmark is missing, but journal {journal.directory} "
                    f"begins with {file_name(first)}. Cure: put the file back as it was; else set "
                    "this bookie's directories aside and replicate"
                )

    async def _settle_logs(self) -> None:
        """Removes unfinished entry logs before the replay, if whole journals prove that this is
        safe."""
        layout = self.layout
        strange = [n for n, one in enumerate(self.directories) if one.inventory.has_strays]
        frames: dict[int, int | None] = {}
        for number in sorted({at for one in strange for at in layout.journals_of(one)}):
            marks, path = self._trimmer.marks_of(number), self.journals[number].directory
            frames[number] = await count_journal_frames(
                self._disk, path, number, layout.journals, marks
            )
        for one in strange:
            counts = [frames[number] for number in layout.journals_of(one)]
            whole = [count for count in counts if count is not None]
            total = sum(whole) if len(whole) == len(counts) else None
            with _damage_of(one):
                await self.directories[one].inventory.settle_early(total)

    async def _require_integrity_check(self, number: int, end: Mark, found: Mark) -> None:
        """Puts the directories of a journal into the state that requires an integrity check, before
        anything is made durable that would look as if nothing were missing."""
        reason = (
            f"the end of journal {number} is lost: it was acknowledged up to offset {end.offset} "
            f"of {file_name(end.file_id)}, and ends at offset {found.offset} of "
            f"{file_name(found.file_id)}"
        )
        _log.warning("journal ends too early journal=%d cause=%s", number, reason)
        for directory in self.layout.directories_of(number):
            integrity = self.directories[directory].integrity
            await integrity.set_state(IntegrityState(IntegrityStage.LEDGERS_UNKNOWN, reason))

    async def run(self) -> None:
        """Runs journals and checkpoints until cancelled. Raises JournalFailed or StorageFailed."""

        async def guarded(task: Callable[[], Awaitable[None]]) -> None:
            try:
                await task()
            except (JournalFailed, StorageFailed) as error:
                self._poison(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for journal in self.journals:
                nursery.start_soon(guarded, journal.run)
            for directory in self.directories:
                nursery.start_soon(guarded, directory.task.run)
                nursery.start_soon(guarded, directory.scrubber.run)
        if self._failure is not None:
            raise self._failure

    def _poison(self, failure: FinalError) -> None:
        """Accepts nothing more. The first failure is the one that is raised."""
        if self._failure is None:
            self._failure = failure
            for directory in self.directories:
                directory.task.poison(failure)

    async def checkpoint(self) -> None:
        """Makes everything that is in memory now durable in entry logs and indexes. Not
        cancellable: half a checkpoint would be a failed one. Raises StorageFailed."""
        for directory in self.directories:
            await directory.checkpoint()

    async def collect_garbage(
        self,
        is_deleted: Callable[[int], Awaitable[bool]],
        *,
        compaction: CompactionKind = CompactionKind.MAJOR,
        is_forced: bool = False,
        is_unborn: Callable[[int], Awaitable[bool]] | None = None,
    ) -> list[GarbageCollectionReport]:
        """Runs one round in each directory, all at once: each should have a disk of its own. See
        `GarbageCollector.collect`."""
        rounds: dict[str, GarbageCollectionReport] = {}

        async def collect(directory: LedgerStorage) -> None:
            rounds[directory.directory] = await directory.garbage.collect(
                is_deleted, compaction=compaction, is_forced=is_forced, is_unborn=is_unborn
            )

        async with trio.open_nursery() as nursery:
            for directory in self.directories:
                nursery.start_soon(collect, directory)
        return [rounds[directory.directory] for directory in self.directories]

    def suspend_compaction(self, kind: CompactionKind) -> None:
        """Suspends compaction in all directories; see `GarbageCollector.suspend`."""
        for directory in self.directories:
            directory.garbage.suspend(kind)

    def resume_compaction(self, kind: CompactionKind) -> None:
        for directory in self.directories:
            directory.garbage.resume(kind)

    def is_compaction_suspended(self, kind: CompactionKind) -> bool:
        return any(directory.garbage.is_suspended(kind) for directory in self.directories)

    def close(self) -> None:
        """Closes files and indexes. Nothing is written: a stop is a crash."""
        for directory in self.directories:
            directory.close()

    def statistics(self) -> StorageStatistics:
        """Returns the statistics of all directories together; each has its own, too."""
        return StorageStatistics.total([one.statistics() for one in self.directories])
