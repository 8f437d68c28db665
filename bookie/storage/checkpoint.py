"""A checkpoint: the write cache goes to entry log and index, then the journal's mark moves.

The order is the promise: mark and caches are taken with no await between; runs are durable
before the index points to them; the index is durable before the mark moves; the mark is
durable before the journal lets files go. Any failure poisons: what is on disk is then unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import trio
from crc32c import crc32c

from bookie.core.caches import Half, ReadCache, WriteCache
from bookie.core.entry_log import flush_steps
from bookie.core.journal import BEGINNING, Mark
from bookie.core.ledger_state import LedgerState
from bookie.storage.disk import Disk
from bookie.storage.entry_log import EntryLogs
from bookie.storage.index import Index, PlacedRun
from bookie.storage.journal import Journal
from bookie.storage.ledger_states import LedgerStates
from ledger.errors import BookieIoError

_MARK_MAGIC = b"LSMARK\x00\x01"
_MARK = struct.Struct(">8sQQQ")
_CRC = struct.Struct(">I")


class StoredMark(NamedTuple):
    """The mark file: replay begins at `mark`, and the index has checkpoint `checkpoint_no`."""

    mark: Mark
    checkpoint_no: int


def encode_mark(stored: StoredMark) -> bytes:
    packed = _MARK.pack(_MARK_MAGIC, *stored.mark, stored.checkpoint_no)
    return packed + _CRC.pack(crc32c(packed))


def decode_mark(data: bytes) -> StoredMark:
    """Raises ValueError if `data` is not a whole mark file."""
    if len(data) != _MARK.size + _CRC.size or data[:8] != _MARK_MAGIC:
        raise ValueError(f"{len(data)} bytes that are no mark file of this version")
    if _CRC.unpack_from(data, _MARK.size)[0] != crc32c(data[: _MARK.size]):
        raise ValueError("wrong checksum")
    _, file_id, offset, checkpoint_no = _MARK.unpack_from(data)
    return StoredMark(Mark(file_id, offset), checkpoint_no)


class Checkpointer:
    """Makes checkpoints, one at a time; the caller holds the storage's write lock."""

    _FREE_ENTRIES = 2000

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        journal: Journal,
        cache: WriteCache,
        read_cache: ReadCache,
        index: Index,
        logs: EntryLogs,
        states: LedgerStates,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._mark_path = f"{directory}/lastmark"
        self._journal = journal
        self._cache = cache
        self._blocks = read_cache
        self._index = index
        self._logs = logs
        self._states = states
        self.stored = StoredMark(BEGINNING, 0)
        self.entries_flushed = 0

    async def load_mark(self) -> Mark:
        """Where replay begins. Raises BookieIoError if the index does not go with the mark."""
        try:
            data = await self._disk.read_file(self._mark_path)
        except FileNotFoundError:
            return BEGINNING
        # A process killed after the rename may have left the new name in memory only. Journal
        # files go because of this mark, so it must not come back older after a power loss.
        await self._disk.sync_directory(self._directory)
        try:
            self.stored = decode_mark(data)
        except ValueError as error:
            raise BookieIoError(
                f"{self._mark_path}: {error}. Cure: remove the file if the journal is whole from "
                "its first file on; else set this bookie's directories aside and replicate"
            ) from error
        indexed = self._index.checkpoint_no
        if indexed < self.stored.checkpoint_no:
            raise BookieIoError(
                f"the index has checkpoint {indexed}, but {self._mark_path} says "
                f"{self.stored.checkpoint_no}: the index directory is not the one that was used "
                "last. Cure: bring it back; or set this bookie's directories aside and replicate"
            )
        return self.stored.mark

    @property
    def is_due(self) -> bool:
        """As much is in memory as may be there before a checkpoint."""
        return self._cache.is_active_full or self._states.are_changes_many

    @property
    def has_work(self) -> bool:
        return (
            bool(self._cache.active)
            or self._cache.is_active_full
            or self._states.has_changes
            or self._journal.mark > self.stored.mark
        )

    async def make(self, *, moves_mark: bool, on_swapped: trio.Event) -> None:
        """One checkpoint. `on_swapped` is set as soon as the cache has room again.

        `moves_mark` is False during replay: the journal must not let go of what it reads.
        """
        # No await between these three: an add enters the cache before the journal, so all
        # that is durable before the mark is in the half swapped out, or was flushed before.
        mark = self._journal.mark
        changed = self._states.take_changed()
        self._cache.swap()
        on_swapped.set()
        half = self._cache.flushing
        assert half is not None
        runs = await self._write_runs(half)
        await self._logs.sync()
        await self._write_index(half, changed, runs)
        checkpoint_no = max(self._index.checkpoint_no, self.stored.checkpoint_no) + 1
        self._index.checkpoint_no = checkpoint_no
        await self._free(half, self._cache.flushed())
        await self._index.flush()
        self._states.saved()
        if moves_mark and mark > self.stored.mark:
            stored = StoredMark(mark, checkpoint_no)
            await self._disk.replace_file(self._mark_path, encode_mark(stored))
            self.stored = stored
            await self._journal.release_before(mark)

    async def _write_runs(self, half: Half) -> list[PlacedRun]:
        placed: list[PlacedRun] = []
        for runs in flush_steps(half, self._cache.segments):
            for run in runs:
                placed.append(await self._logs.append(run))
                self.entries_flushed += len(run.lengths)
            await trio.lowlevel.checkpoint()
        return placed

    async def _write_index(
        self, half: Half, changed: dict[int, LedgerState], runs: list[PlacedRun]
    ) -> None:
        # Before any run that points into these logs: a log without this record may be removed.
        for log_id, ledgers in self._logs.take_sealed().items():
            self._index.put_log_ledgers(log_id, ledgers)
            await trio.lowlevel.checkpoint()
        if self._logs.current_id is not None:
            self._index.put_log_ledgers(self._logs.current_id, self._logs.current_ledgers)
        for _ in self._index.put_states(self._states_to_store(half, changed)):
            await trio.lowlevel.checkpoint()
        for overwritten in self._index.put_runs(runs):
            if overwritten is not None:
                self._blocks.drop_ledger(overwritten)
            await trio.lowlevel.checkpoint()

    def _states_to_store(
        self, half: Half, changed: dict[int, LedgerState]
    ) -> Iterator[LedgerState]:
        """Changed ones, and those of all ledgers with new entries, because of their LAC."""
        yield from changed.values()
        for ledger_id in half:
            if ledger_id not in changed:
                state = self._states.get(ledger_id)
                assert state is not None, f"entries of ledger {ledger_id} without a state"
                yield state

    async def _free(self, half: Half, segments: list[memoryview]) -> None:
        """Gives back a million ints and a hundred MiB in steps: at once it would delay
        acknowledgements by tens of milliseconds."""
        while segments:
            self._cache.give_back(segments.pop())
            await trio.lowlevel.checkpoint()
        freed = 0
        while half:
            _, entries = half.popitem()
            while len(entries) > self._FREE_ENTRIES:
                for _ in range(self._FREE_ENTRIES):
                    entries.popitem()
                await trio.lowlevel.checkpoint()
            freed += len(entries) + 10
            if freed > self._FREE_ENTRIES:
                freed = 0
                await trio.lowlevel.checkpoint()
