"""Takes inventory of the entry logs at a start: those the index knows, those it misses, and strays.

Strays were written by a checkpoint or a compaction that did not finish, or are half removed: then
the journals, or other logs, have all of it. But to an index that is older than the logs, for
example one restored from a backup, the only copies look just the same. So a log that the index does
not know is removed only if nothing suggests an older index or a loss: the journals are whole, from
the marks on, up to the end they recorded; every log that the index knows exists; and the index has
no record that ledgers may be missing. Otherwise it is kept under another name.
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
"""Why such a log is set aside. The next start then knows this loss, and no other."""


async def count_journal_frames(
    disk: Disk, directory: str, number: int, journals: int, marks: Mapping[int, Mark]
) -> int | None:
    """Counts the frames from the least of the marks on; None if the journal is not whole: then a
    replay may refuse it, or find less than the bookie had. Changes nothing. Raises OSError.

    It reads what the replay reads afterwards. But it runs only if there are strays, and reading
    twice is cheap compared with removing what only the replay proves to be needed.
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
    """The entry logs at a start. Call `find`; before the replay `settle_early`, if there are
    strays; after it `settle`."""

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
        """The number of logs that the index points into, but that do not exist."""

    @property
    def has_strays(self) -> bool:
        """Whether there are logs that the index does not know."""
        return bool(self._strays)

    async def find(self) -> None:
        """Finds the logs. Changes nothing. Raises OSError, BookieIoError."""
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
        """Removes the strays, if that is safe. At once, because their space may be needed, and
        starts that are killed one after the other must not accumulate them. Raises OSError,
        BookieIoError.

        Args:
            journal_frames: the number of frames in the journals of this directory, all of which are
                whole; None: one of them is not.
        """
        doubt = read_integrity_state(self._pairs)
        is_safe = (
            journal_frames is not None
            # After an interrupted first checkpoint the journals have everything. If they have
            # nothing, it was not a first one: index and journals are empty, and should not be.
            and (journal_frames > 0 or self._index.checkpoint_no > 0)
            and not self._unexplained
            and (doubt is None or doubt.stage is not IntegrityStage.LEDGERS_UNKNOWN)
        )
        while is_safe and self._strays:
            await self._logs.remove(self._strays.pop())

    async def settle(self) -> None:
        """Sets aside the strays that are left. Call it after the replay and its checkpoint, when
        the start is not refused any more. Raises OSError, StorageFailed."""
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
                "entry logs kept of which something was left out when the index was rebuilt "
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
        """Records the missing logs, so that they are evidence once, and what later crashes leave is
        removed."""
        if not self._unexplained:
            return
        async with self._changes.making("noting that entry logs are missing"):
            while self._unexplained:
                self._index.set_log_aside(self._unexplained.pop(), MISSING)
            await self._index.flush()
