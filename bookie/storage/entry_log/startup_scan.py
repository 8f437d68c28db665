"""The entry logs that a start finds: those the index knows, those it misses, and those left over.

What is left over was written by a checkpoint or a compaction that did not finish, or is half
removed: then the journals, or other logs, have all of it. But to an index that is older than the
logs, one brought back from a backup say, the only copies there are look just the same. So a log
that the index does not know is removed only if nothing speaks for an older index or for a loss:
the journals are whole, from the marks on, up to the end they told of; every log that the index
knows is there; and it is not in doubt which ledgers there are. Else it is kept under another name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from bookie.core.integrity import CheckReport, Severity
from bookie.core.integrity_state import IntegrityStage
from bookie.core.journal import Mark
from bookie.storage.disk.disk import Disk
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.index.index import Index
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.index.key_value import KeyValue
from bookie.storage.integrity_state import read_integrity_state
from bookie.storage.journal.check import JournalCheck

_log = logging.getLogger(__name__)

MISSING: Final = "the file was missing at a start, and logs that the index did not know were kept"
"""Why such a log is set aside. The next start then knows of this loss, and of no other."""


async def count_journal_frames(
    disk: Disk, directory: str, number: int, journals: int, marks: Mapping[int, Mark]
) -> int | None:
    """From the least of the marks on; None if the journal is not whole, and then a replay may
    refuse it, or knows less than the bookie did. Changes nothing. Raises OSError.

    It reads what the replay reads afterwards. But it is done only where logs were left over, and
    to read twice is little against removing what only the replay can tell to be needed.
    """
    report = CheckReport()
    await JournalCheck(
        disk,
        directory,
        number,
        journals,
        marks,
        report,
        are_marks_known=True,
        on_bytes=lambda _: None,
    ).run()
    return None if report.found[Severity.DAMAGE] else report.journal_frames


class EntryLogInventory:
    """`find`; before the replay `settle_early`, if there are strays; after it `settle`."""

    def __init__(
        self, logs: EntryLogs, index: Index, pairs: KeyValue, changes: IndexChanges
    ) -> None:
        self._logs = logs
        self._index = index
        self._pairs = pairs
        self._changes = changes
        self._strays: list[int] = []
        self._unexplained: list[int] = []
        """Logs that are missing for the first time."""
        self._back: list[int] = []
        self._is_settled = False
        self.missing = 0
        """The index points into so many that are not there."""

    @property
    def has_strays(self) -> bool:
        """There are logs that the index does not know."""
        return bool(self._strays)

    async def find(self) -> None:
        """Changes nothing. Raises OSError, BookieIoError."""
        found = dict.fromkeys(await self._logs.start())
        indexed = self._index.log_ids()
        known = dict.fromkeys(indexed)
        aside = self._index.logs_set_aside()
        self._strays = [log_id for log_id in found if log_id not in known]
        missing = [log_id for log_id in indexed if log_id not in found]
        self.missing = len(missing)
        self._unexplained = [log_id for log_id in missing if aside.get(log_id) != MISSING]
        self._back = [at for at, why in aside.items() if why == MISSING and at in found]
        if indexed:
            self._logs.skip_ids(indexed[-1])

    async def settle_early(self, journal_frames: int | None) -> None:
        """Removes the strays, if that is safe. At once, for their room may be needed, and starts
        that are killed one after the other must not pile them up. Raises OSError, BookieIoError.

        Args:
            journal_frames: so many are in the journals of this directory, all of which are whole;
                None: one of them is not.
        """
        doubt = read_integrity_state(self._pairs)
        is_safe = (
            journal_frames is not None
            # Of a first checkpoint that was cut short the journals have everything. If they have
            # nothing, it was not a first one: index and journals are empty, and should not be.
            and (journal_frames > 0 or self._index.checkpoint_no > 0)
            and not self._unexplained
            and (doubt is None or doubt.stage is not IntegrityStage.LEDGERS_UNKNOWN)
        )
        while is_safe and self._strays:
            await self._logs.remove(self._strays.pop())

    async def settle(self) -> None:
        """After the replay and its checkpoint: the start is not refused any more. Sets aside the
        strays that are left. Raises OSError, StorageFailed."""
        if self._strays:
            count = len(self._strays)
            while self._strays:
                await self._logs.set_stray_aside(self._strays[-1])
                self._strays.pop()
            await self._logs.sync_names()
            _log.error(
                "entry logs set aside that the index does not know directory=%s logs=%d "
                "logs_missing=%d. The index may be older than they are, or the journal has lost "
                "its end: they may hold the only copies of entries. Cure: see 'Entry logs the "
                "index does not know' in docs/operations.md",
                self._logs.directory,
                count,
                self.missing,
            )
            await self._note_missing()
        kept = 0 if self._is_settled else self._index.count_logs_kept()
        if kept:
            _log.warning(
                "entry logs kept of which something was left out when the index was made again "
                "directory=%s logs=%d. Cure: see 'A damaged or lost index' in docs/operations.md",
                self._logs.directory,
                kept,
            )
        self._is_settled = True
        if self._back:
            async with self._changes.making("taking entry logs back"):
                while self._back:
                    self._index.take_log_back(self._back.pop())

    async def _note_missing(self) -> None:
        """So that they are evidence once, and what later crashes leave is removed."""
        if not self._unexplained:
            return
        async with self._changes.making("noting that entry logs are missing"):
            while self._unexplained:
                self._index.set_log_aside(self._unexplained.pop(), MISSING)
            await self._index.flush()
