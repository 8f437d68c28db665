"""Reads entry logs again, slowly, to find damage while there are other copies.

It verifies the checksums of every record with live entries, and that the entries are those of the
index. Damage sets the log aside, as compaction does: it is reported once, and entries in it that
are whole are still read. Nothing here stops the bookie but an index that cannot be written.
"""

from __future__ import annotations

import logging
from itertools import islice

import trio

from bookie.core.compaction import TokenBucket
from bookie.core.integrity import is_entry_of
from bookie.storage.disk.disk import Disk
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.entry_log.scan import WINDOW_BYTES, LogRecord, LogScanner
from bookie.storage.garbage.compaction_index import CompactionIndex
from bookie.storage.index.index import Index, PlacedRun
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.index.key_value import IndexUnreadable, KeyValue
from bookie.storage.metrics import ScrubStatistics
from bookie.storage.yielding import yield_to_tasks
from ledger.errors import BookieIoError

_log = logging.getLogger(__name__)

PAUSE_S = 60.0
"""The pause before the first round, and between two: with few logs a round is short."""
_RUNS_PER_STEP = 50
_LOOKUPS_PER_STEP = 8
"""Look-ups in the index before other tasks run: about half a millisecond. With small entries a
piece of a log that is read at once holds thousands of records."""
_RECORD_BYTES_MIN = 1024
"""What a record counts in the bound, and a ledger that is searched for after the last record:
looking it up takes as long as reading this much."""


class Scrubber:
    """The scrubber of one ledger directory; `run` once. A restart begins again with the first
    log."""

    def __init__(
        self,
        disk: Disk,
        index: Index,
        pairs: KeyValue,
        logs: EntryLogs,
        changes: IndexChanges,
        bytes_per_s: float,
    ) -> None:
        """`index`: the one that is changed, because it knows the current logs. `bytes_per_s`: the
        largest rate, where each record counts for a KiB or more; 0: it does nothing."""
        self._disk = disk
        self._index = index
        self._places = CompactionIndex(index, pairs)
        self._logs = logs
        self._changes = changes
        self._bytes_per_s = bytes_per_s
        self._bucket: TokenBucket | None = None
        self.statistics = ScrubStatistics()

    async def run(self) -> None:
        """Scrubs until cancelled. Raises StorageFailed."""
        while self._bytes_per_s > 0:
            await trio.sleep(PAUSE_S)
            await self.round()

    async def round(self) -> None:
        """Reads all logs that are sealed now, except those set aside. Raises StorageFailed."""
        unread: dict[int, IndexUnreadable] = {}
        for log_id in self._index.log_ids():
            try:
                await self._look_at(log_id)
            except IndexUnreadable as error:  # this is not about the log, nor about the others
                unread[log_id] = error
                await yield_to_tasks()
        for log_id, cause in islice(unread.items(), 1):
            _log.error(
                "entry logs not scrubbed: the index cannot be read logs=%d first=%s cause=%s",
                len(unread),
                self._logs.path(log_id),
                cause,
            )
        self.statistics.rounds += 1

    async def _look_at(self, log_id: int) -> None:
        if log_id == self._logs.current_id or log_id in self._index.logs_set_aside():
            return
        damage = await self._damage_in(log_id)
        self.statistics.logs += 1
        if damage:
            await self._set_aside(log_id, damage)

    async def _set_aside(self, log_id: int, damage: str) -> None:
        async with self._changes.making("marking a damaged entry log"):
            if log_id not in self._index.log_ids():
                return  # it was removed meanwhile, which is no damage
            self._index.set_log_aside(log_id, damage)
        self.statistics.damaged_logs += 1
        _log.error("damaged entry log found path=%s damage=%s", self._logs.path(log_id), damage)

    async def _damage_in(self, log_id: int) -> str:
        """Returns what is wrong with the log; "" if nothing is. Raises IndexUnreadable."""
        try:
            file = await self._disk.open(self._logs.path(log_id))
        except OSError as error:
            return f"it cannot be opened: {error}"
        try:
            scan = LogScanner(file, log_id, on_read=self._wait_turn)
            record = await scan.next()
            seen, since = 0, scan.position
            while True:
                while record is not None:
                    if problem := await self._problem_of(scan, record):
                        return problem
                    seen += 1
                    if seen % _LOOKUPS_PER_STEP == 0:
                        read, since = scan.position - since, scan.position
                        await self._pace_lookups(already=read)
                    record = await scan.next()
                damage = await self._needed_behind(log_id, scan)
                # Or it was written meanwhile: by a compaction, which fills its log step by step.
                if not damage or (record := await scan.next()) is None:
                    return damage
        except IndexUnreadable:
            raise
        except (OSError, BookieIoError) as error:
            return str(error)
        finally:
            file.close()

    async def _problem_of(self, scan: LogScanner, record: LogRecord) -> str:
        if not self._places.parts_of(record.run):
            return ""
        try:
            problem = _strangers(record.run, await scan.body(record))
        except BookieIoError as error:
            problem = str(error)
        # Looked up again: an entry that was moved or deleted meanwhile is not lost.
        return problem if problem and self._places.parts_of(record.run) else ""

    async def _needed_behind(self, log_id: int, scan: LogScanner) -> str:
        """Returns whether the index needs anything after the last whole record."""
        for looked_up, ledger_id in enumerate(self._index.log_ledger_ids(log_id), 1):
            at = 0
            while runs := list(islice(self._index.runs(ledger_id, at), _RUNS_PER_STEP)):
                if any(run.log_id == log_id and run.offset >= scan.position for run in runs):
                    return f"no whole record {scan.end_reason}, but entries are stored after it"
                at = runs[-1].last + 1
                await yield_to_tasks()
            if looked_up % _LOOKUPS_PER_STEP == 0:
                await self._pace_lookups()
        return ""

    async def _pace_lookups(self, already: int = 0) -> None:
        """Waits after a step of look-ups. `already`: the bytes it read, which were counted
        before."""
        await yield_to_tasks()
        await self._pace(_LOOKUPS_PER_STEP * _RECORD_BYTES_MIN - already)

    async def _wait_turn(self, nbytes: int) -> None:
        self.statistics.bytes_read += nbytes
        await self._pace(nbytes)

    async def _pace(self, nbytes: int) -> None:
        if nbytes > 0:
            now = trio.current_time()
            if self._bucket is None:
                self._bucket = TokenBucket(self._bytes_per_s, WINDOW_BYTES, now)
            await trio.sleep(self._bucket.take(nbytes, now))


def _strangers(run: PlacedRun, body: bytes) -> str:
    begin = 0
    for entry_id, length in enumerate(run.lengths, run.first):
        if not is_entry_of(memoryview(body)[begin : begin + length], run.ledger_id, entry_id):
            return (
                f"entry {entry_id} of ledger {run.ledger_id}: other bytes are stored in its place"
            )
        begin += length
    return ""
