"""All numbers of a bookie at one moment, for metrics, for `bookie show` and for HTTP.

Looking costs no task anything but the time of the look: counters are plain attributes, disks are
asked in threads, and ledgers are counted in small steps, seldom.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import IntEnum

import trio

from bookie.bookie import Bookie
from bookie.core.disk_space import DiskState
from bookie.core.journal import Mark, file_id_of
from bookie.server.server import ServerStatistics
from bookie.storage.disk.disk import Disk
from bookie.storage.journal.metrics import JournalStatistics
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.metrics import DirectoryStatistics

_log = logging.getLogger(__name__)

_COUNT_STEP = 200
_COUNT_SHARE = 0.01
"""Counting ledgers may take at most this share of the time."""


class ServerStatus(IntEnum):
    """Apache's numbers of the same states."""

    WRITABLE = 1
    READ_ONLY = 0
    UNREGISTERED = -1


@dataclass(frozen=True, slots=True)
class Space:
    """A directory's file system. Bytes; None if it could not be asked."""

    path: str
    total_bytes: int | None
    free_bytes: int | None
    state: DiskState
    """At the bookie's last look."""


@dataclass(frozen=True, slots=True)
class LedgerDirectory:
    space: Space
    ledgers: int | None
    """In the index; None before they were counted for the first time."""
    statistics: DirectoryStatistics


@dataclass(frozen=True, slots=True)
class JournalDirectory:
    space: Space
    statistics: JournalStatistics


@dataclass(frozen=True, slots=True)
class Snapshot:
    bookie_id: str
    status: ServerStatus
    started_s_ago: float
    syncs_data: bool
    """Adds are acknowledged after their sync, not from the page cache."""
    collections_put_off: int
    disk_state: DiskState
    """The worst of its file systems."""
    reserved_bytes: int
    """Of the reserves that are there."""
    is_forced_read_only: bool
    server: ServerStatistics
    journals: tuple[JournalDirectory, ...]
    directories: tuple[LedgerDirectory, ...]


class LedgerCount:
    """How many ledgers one directory's index holds.

    Counted in steps, and again only if something was stored since, and so seldom that it takes
    a hundredth of the time at most.
    """

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._count: int | None = None
        self._changes = -1
        self._next_at = 0.0
        self._counting = trio.Lock()

    async def get(self) -> int | None:
        """The number; while somebody else counts, the one before."""
        changes = self._storage.index_changes
        now = trio.current_time()
        if self._counting.locked() or changes == self._changes or now < self._next_at:
            return self._count
        async with self._counting:
            after = -1
            count = 0
            while ledger_ids := self._storage.ledger_ids(after, _COUNT_STEP):
                count += len(ledger_ids)
                after = ledger_ids[-1]
                await trio.lowlevel.checkpoint()
            took_s = trio.current_time() - now
            self._count, self._changes = count, changes
            self._next_at = now + took_s / _COUNT_SHARE
        return count


class Observer:
    """Takes snapshots of one bookie that serves, or will."""

    def __init__(self, bookie: Bookie, disk: Disk) -> None:
        """`disk`: the one the bookie has."""
        self.bookie = bookie
        self._disk = disk
        self._started_at = trio.current_time()
        self._counts: tuple[LedgerCount, ...] = ()

    @property
    def is_ready(self) -> bool:
        """The bookie serves; before that there is nothing to take a snapshot of."""
        return self.bookie.server is not None

    @property
    def status(self) -> ServerStatus:
        registration = self.bookie.registration
        if registration is None:
            return ServerStatus.UNREGISTERED
        return ServerStatus.READ_ONLY if registration.is_read_only else ServerStatus.WRITABLE

    async def snapshot(self) -> Snapshot:
        """Everything now. The bookie must be ready."""
        bookie = self.bookie
        assert bookie.server is not None, "the bookie does not serve yet"
        assert bookie.storage is not None
        if not self._counts:
            self._counts = tuple(LedgerCount(one) for one in bookie.storage.directories)
        config = bookie.config
        ledgers = [await count.get() for count in self._counts]
        of_journals = [await self._space(path) for path in config.journal_directories]
        of_ledgers = [await self._space(path) for path in config.ledger_directories]
        # From here on without an await: numbers that belong together.
        return Snapshot(
            bookie_id=bookie.bookie_id,
            status=self.status,
            started_s_ago=trio.current_time() - self._started_at,
            syncs_data=config.journal_sync_data,
            collections_put_off=bookie.collections_put_off,
            disk_state=bookie.disk_monitor.state,
            reserved_bytes=bookie.disk_monitor.held_bytes,
            is_forced_read_only=bookie.disk_monitor.is_forced,
            server=bookie.server.statistics(),
            journals=tuple(
                JournalDirectory(space, journal.statistics())
                for space, journal in zip(of_journals, bookie.storage.journals, strict=True)
            ),
            directories=tuple(
                LedgerDirectory(space, count, storage.details())
                for space, count, storage in zip(
                    of_ledgers, ledgers, bookie.storage.directories, strict=True
                )
            ),
        )

    async def _space(self, path: str) -> Space:
        total: int | None
        free: int | None
        try:
            total, free = await self._disk.space(path)
        except OSError as error:
            _log.warning("space unknown directory=%s cause=%s", path, error)
            total = free = None
        return Space(path, total, free, self.bookie.disk_monitor.state_of(path))

    async def files(self) -> dict[str, list[str]]:
        """Names of the bookie's files by kind: journal, entrylog, index; where it has several
        directories of a kind, which have files of the same names, with their directory before
        them. Raises OSError."""
        config = self.bookie.config
        journals: list[str] = []
        logs: list[str] = []
        index: list[str] = []
        for path in config.journal_directories:
            names = await self._disk.list_directory(path)
            of = f"{path}/" if len(config.journal_directories) > 1 else ""
            journals += [f"{of}{name}" for name in names if file_id_of(name) is not None]
        for path in config.ledger_directories:
            names = await self._disk.list_directory(path)
            of = f"{path}/" if len(config.ledger_directories) > 1 else ""
            logs += [f"{of}{name}" for name in names if name.endswith(".log")]
            of += "index/" if of else ""
            index += [f"{of}{name}" for name in await self._disk.list_directory(f"{path}/index")]
        return {"journal": sorted(journals), "entrylog": sorted(logs), "index": sorted(index)}

    def replay_marks(self) -> dict[int, Mark]:
        """Where the replay of each journal would begin: the oldest of its directories' marks."""
        assert self.bookie.storage is not None, "the bookie does not serve yet"
        marks: dict[int, Mark] = {}
        for directory in self.bookie.storage.directories:
            for number, mark in directory.stored_marks.items():
                marks[number] = min(mark, marks.get(number, mark))
        return dict(sorted(marks.items()))
