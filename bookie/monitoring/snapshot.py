"""Takes a snapshot of all numbers of a bookie, for metrics, `bookie show` and HTTP.

A snapshot delays no other task: counters are plain attributes, the space of disks is read in
threads, and ledgers are counted seldom and in small steps.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import trio

from bookie.bookie import Bookie
from bookie.core.disk_space import DiskState
from bookie.core.journal import Mark, file_id_of
from bookie.core.over_replication import OverReplicationReport
from bookie.server.audit import AuditCounts
from bookie.server.server import ServerStatistics
from bookie.storage.disk.disk import Disk
from bookie.storage.journal.metrics import JournalStatistics
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.metrics import DirectoryStatistics

if TYPE_CHECKING:
    from ledger.autorecovery.published import HealingNow
    from ledger.autorecovery.service import AutoRecovery

_log = logging.getLogger(__name__)

_COUNT_STEP = 200
_COUNT_SHARE = 0.01
"""Largest share of the time that counting ledgers may take."""


class ServerStatus(IntEnum):
    """States of the server, with Apache's numbers."""

    WRITABLE = 1
    READ_ONLY = 0
    UNREGISTERED = -1


@dataclass(frozen=True, slots=True)
class Space:
    """The file system of a directory. Bytes are None if they could not be read."""

    path: str
    total_bytes: int | None
    free_bytes: int | None
    state: DiskState
    """The state at the bookie's last check."""


@dataclass(frozen=True, slots=True)
class LedgerDirectory:
    space: Space
    ledgers: int | None
    """Ledgers in the index; None before they were counted for the first time."""
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
    """Whether adds are acknowledged after their sync, not from the page cache."""
    collections_put_off: int
    disk_state: DiskState
    """The worst state of its file systems."""
    reserved_bytes: int
    """Bytes of the reserves that exist."""
    is_forced_read_only: bool
    is_emptying: bool
    """Whether an operator has its copies moved away."""
    over_replication: OverReplicationReport
    """What was done about unneeded copies since the bookie began to run."""
    over_replication_passes: int
    copies_unneeded: int
    """Unneeded copies that were found and are still here."""
    healing: HealingNow | None
    """What auto-recovery does in the bookie's process, if it runs there."""
    audit: AuditCounts
    tasks: int
    """Tasks of the process that have not ended."""
    server: ServerStatistics
    journals: tuple[JournalDirectory, ...]
    directories: tuple[LedgerDirectory, ...]


class LedgerCount:
    """Counts the ledgers in the index of one directory.

    It counts in steps, again only if the index has changed, and so seldom that counting takes at
    most a hundredth of the time.
    """

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._count: int | None = None
        self._changes = -1
        self._next_at = 0.0
        self._counting = trio.Lock()

    async def get(self) -> int | None:
        """Returns the number, or the previous one while another task counts."""
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
    """Takes snapshots of one bookie, once it serves."""

    def __init__(self, bookie: Bookie, disk: Disk) -> None:
        """`disk` is the one that the bookie uses."""
        self.bookie = bookie
        self._disk = disk
        self._started_at = trio.current_time()
        self._counts: tuple[LedgerCount, ...] = ()
        self._healing: AutoRecovery | None = None

    def observe_healing(self, service: AutoRecovery) -> None:
        """Includes auto-recovery, which has begun in the bookie's process."""
        self._healing = service

    @property
    def is_ready(self) -> bool:
        """Whether the bookie serves; before that there are no numbers."""
        return self.bookie.server is not None

    @property
    def status(self) -> ServerStatus:
        registration = self.bookie.registration
        if registration is None:
            return ServerStatus.UNREGISTERED
        return ServerStatus.READ_ONLY if registration.is_read_only else ServerStatus.WRITABLE

    async def snapshot(self) -> Snapshot:
        """Takes a snapshot. The bookie must be ready."""
        bookie = self.bookie
        assert bookie.server is not None, "the bookie does not serve yet"
        assert bookie.storage is not None
        assert bookie.over_replication is not None
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
            is_emptying=bookie.disk_monitor.is_emptying,
            over_replication=replace(bookie.over_replication.total),
            over_replication_passes=bookie.over_replication.passes,
            copies_unneeded=bookie.over_replication.unneeded,
            healing=self._healing.now() if self._healing is not None else None,
            audit=replace(bookie.audit.counts) if bookie.audit is not None else AuditCounts(),
            tasks=trio.lowlevel.current_statistics().tasks_living,
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
        """Returns the names of the bookie's files by kind: journal, entrylog, index. With several
        directories of a kind, names include the directory. Raises OSError."""
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
