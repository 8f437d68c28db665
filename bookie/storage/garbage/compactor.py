"""Compaction: moves live entries out of entry logs that hold mostly dead bytes, and removes them.

The core is `bookie.core.compaction`. The order is the guarantee: copies are checked, then durable,
then the index is moved to them where it still points at the old place, then the index proves that
the old log is empty and is made durable without it, and only then the old file is removed. A crash
at any point leaves the old place or the new one, never neither. A log that cannot be read whole is
set aside, and never stops the others.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import islice

import trio

from bookie.core.compaction import (
    MIB,
    CompactionKind,
    CompactionOptions,
    LogUse,
    TokenBucket,
    choose_logs,
    ratio_histogram,
)
from bookie.core.entry_log import Run, make_run
from bookie.storage.disk.disk import Disk
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.entry_log.scan import LogRecord, LogScanner
from bookie.storage.garbage.compaction_index import CompactionIndex, Move
from bookie.storage.garbage.compaction_log import CompactionLog
from bookie.storage.garbage.log_usage import LEDGERS_PER_STEP, is_removable, measure_log_usage
from bookie.storage.index.index import Index, PlacedRun
from bookie.storage.index.index_changes import IndexChanges
from bookie.storage.index.key_value import IndexUnreadable
from bookie.storage.metrics import CompactionStatistics, GarbageCollectionReport
from bookie.storage.yielding import yield_to_tasks
from ledger.errors import BookieIoError

STEP_BYTES = 4 * MIB
"""Bytes copied between two syncs of the new log, or more if it has entries of very many ledgers:
each step with a new ledger writes the index's record of the log as a whole. The index is moved
after each."""
_RECORD_BYTES_PER_LEDGER = 16
_RECORD_SHARE_MAX = 1 / 16
RUNS_PER_HOLD = 200
"""Runs moved at once while a checkpoint must wait."""
FILES_PER_HOLD = 10
BURST_S = 0.25
"""How much of a rate may be taken at once, in seconds of it."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class _Damaged(Exception):
    """A log cannot be read whole; the text is what is wrong."""


class _Ended(Exception):
    """The compaction must end now; the text is the reason."""


class Compactor:
    """Compacts the sealed logs of one ledger directory; one compaction at a time."""

    def __init__(
        self,
        *,
        disk: Disk,
        directory: str,
        index: Index,
        compaction_index: CompactionIndex,
        logs: EntryLogs,
        changes: IndexChanges,
        options: CompactionOptions,
        log_bytes_max: int,
        statistics: CompactionStatistics,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._index = index
        self._places = compaction_index
        self._logs = logs
        self._changes = changes
        self._options = options
        self._log_bytes_max = log_bytes_max
        self._statistics = statistics
        self._target: CompactionLog | None = None
        self._target_moved = 0
        self._target_ledgers = 0
        """The number of ledgers in the index's record of the new log."""
        self._moves: list[Move] = []
        self._moves_bytes = 0
        self._buckets: tuple[TokenBucket, TokenBucket] | None = None
        self._ends_at = 0.0
        self._round = GarbageCollectionReport()
        self._kind = CompactionKind.NONE
        self._is_forced = False
        self._end_reason = ""

    async def compact(
        self,
        kind: CompactionKind,
        sealed: Sequence[int],
        set_aside: Iterable[int],
        round_: GarbageCollectionReport,
        *,
        is_forced: bool,
    ) -> None:
        """Runs one compaction of `sealed`, except those `set_aside`; records what it did in
        `round_`.

        It may be cancelled or crash at any point: what was moved stays moved. Raises StorageFailed
        if index or logs could not be changed.
        """
        now = trio.current_time()
        self._round, self._kind, self._is_forced, self._end_reason = round_, kind, is_forced, ""
        round_.compaction = kind
        seconds_max = self._options.seconds_max(kind)
        self._ends_at = now + seconds_max if seconds_max > 0 else float("inf")
        self._statistics.is_compacting = True
        try:
            await self._compact(kind, sealed, set_aside)
        except _Ended as ended:
            round_.ended_early = str(ended)
        except IndexUnreadable as error:
            round_.ended_early = "the index cannot be read"
            round_.unreadable(error)
        finally:
            self._statistics.is_compacting = False
            self._moves, self._moves_bytes = [], 0
            target, self._target = self._target, None
            if target is not None:  # cancelled: its record names everything that was moved into it
                target.close()
            round_.seconds = trio.current_time() - now

    def end(self, kind: CompactionKind, reason: str) -> None:
        """Ends a compaction in progress at its next step, if it is of this kind and not forced."""
        if kind is self._kind and not self._is_forced:
            self._end_reason = reason

    async def set_aside(self, log_id: int, reason: str, round_: GarbageCollectionReport) -> None:
        """Marks a damaged log, and reports it in `round_` if that is new."""
        if log_id in self._index.logs_set_aside():
            return
        round_.set_aside += (f"{self._logs.path(log_id)}: {reason}",)
        async with self._changes.making("marking a damaged entry log"):
            self._index.set_log_aside(log_id, reason)

    async def _compact(
        self, kind: CompactionKind, sealed: Sequence[int], set_aside: Iterable[int]
    ) -> None:
        skipped = dict.fromkeys(set_aside)
        uses = await self._survey(sealed)
        empty = [use.log_id for use in uses if not use.bytes_live]
        await self._drop(empty)
        chosen = choose_logs(
            (use for use in uses if use.bytes_live and use.log_id not in skipped),
            self._options.ratio_max(kind),
            full_bytes=self._log_bytes_max if self._options.is_small_log_sparse else 0,
        )
        try:
            for use in chosen:
                self._check_time()
                _, free = await self._disk.space(self._directory)
                if free < use.bytes_live + self._options.free_bytes_min:
                    self._round.logs_without_room += 1
                    continue
                await self._rewrite_or_set_aside(use.log_id)
        except _Ended:
            await self._move()
            await self._finish_target()
            raise
        await self._finish_target()

    async def _survey(self, sealed: Sequence[int]) -> list[LogUse]:
        survey = await measure_log_usage(
            sealed, self._index, self._places, self._logs, on_step=self._check_time
        )
        for log_id, reason in survey.unopened.items():
            await self.set_aside(log_id, reason, self._round)
        statistics = self._statistics
        statistics.log_bytes = sum(use.bytes_total for use in survey.uses)
        statistics.live_bytes = sum(use.bytes_live for use in survey.uses)
        statistics.logs_by_live_ratio = ratio_histogram(survey.uses)
        return survey.uses

    # --- one log

    async def _rewrite_or_set_aside(self, log_id: int) -> None:
        try:
            await self._rewrite(log_id)
        except IndexUnreadable as error:
            # This is not about this log, which stays as it is, nor about the others.
            self._moves, self._moves_bytes = [], 0
            self._round.unreadable(error)
        except _Damaged as damage:
            await self._move()  # what was copied so far need not be on that part of the disk
            await self.set_aside(log_id, str(damage), self._round)

    async def _rewrite(self, log_id: int) -> None:
        try:
            file = await self._disk.open(self._logs.path(log_id))
        except OSError as error:
            raise _Damaged(f"it cannot be opened: {error}") from error
        try:
            scan = LogScanner(file, log_id, on_read=self._pace)
            damage = await self._copy_all(scan)
        finally:
            file.close()
        await self._move()
        if damage:
            raise _Damaged(damage)
        if await self._is_needed(log_id):
            raise _Damaged(
                f"its records end {scan.end_reason}, but the index knows entries that come later"
            )
        await self._drop([log_id])

    async def _copy_all(self, scan: LogScanner) -> str:
        """Copies all that is whole; returns what is wrong with the first record that stays."""
        damage = ""
        while True:
            try:
                record = await scan.next()
                if record is None:
                    return damage
                parts = self._places.parts_of(record.run)
                body = await scan.body(record) if parts else b""
            except IndexUnreadable:
                raise
            except BookieIoError as error:
                damage = damage or f"a record is damaged {error}"
                continue
            except OSError as error:
                raise _Damaged(f"reading the record before {scan.position}: {error}") from error
            for part in parts:
                await self._copy(part, _run_of(part, record, body))
            self._check_time()
            await yield_to_tasks()

    async def _copy(self, part: PlacedRun, run: Run) -> None:
        size = run.nbytes
        if self._target is None or not self._target.has_space(size):
            await self._move()
            await self._finish_target()
            await self._begin_target()
        assert self._target is not None
        await self._pace(size, len(run.lengths))
        async with self._writing_target():
            offset = await self._target.append(run)
        self._moves.append(Move(part, self._target.log_id, offset))
        self._moves_bytes += run.body_bytes
        self._round.entries_moved += len(run.lengths)
        record_bytes = len(self._target.ledgers) * _RECORD_BYTES_PER_LEDGER
        if self._moves_bytes >= max(STEP_BYTES, record_bytes / _RECORD_SHARE_MAX):
            await self._move()

    async def _move(self) -> None:
        """Makes what was copied durable, then makes the index point to it."""
        if not self._moves:
            return
        target = self._target
        assert target is not None, "copies without a log to lie in"
        async with self._writing_target():
            await target.sync()
        moves, self._moves, self._moves_bytes = self._moves, [], 0
        if len(target.ledgers) != self._target_ledgers:
            async with self._changes.making("noting a compaction log in the index"):
                # Before any run that points into it: a log without this record may be removed, and
                # so may one when all ledgers in its record are deleted.
                await self._note_ledgers(target)
            self._target_ledgers = len(target.ledgers)
        for begin in range(0, len(moves), RUNS_PER_HOLD):
            async with self._changes.making("moving entries in the index"):
                for moved_bytes in self._places.move(moves[begin : begin + RUNS_PER_HOLD]):
                    self._round.bytes_moved += moved_bytes
                    self._target_moved += moved_bytes
                    await yield_to_tasks()

    async def _note_ledgers(self, target: CompactionLog) -> None:
        for _ in self._index.put_log_ledgers(target.log_id, target.ledgers):
            await yield_to_tasks()

    async def _is_needed(self, log_id: int) -> bool:
        """Returns whether the index still points into a log all of which should have been moved."""
        every = self._index.log_ledger_ids(log_id)
        while step := list(islice(every, LEDGERS_PER_STEP)):
            for ledger_id in step:
                if not self._index.has_state(ledger_id):
                    continue
                for is_needed in self._places.points_into(log_id, ledger_id):
                    if is_needed:
                        return True
                    await yield_to_tasks()
        return False

    # --- begin and end of logs

    async def _begin_target(self) -> None:
        async with self._changes.making("beginning a compaction log"):
            # What is added again from now on must come after the copies, in the order of ids.
            await self._logs.seal()
            self._logs.take_sealed()  # the index knows its ledgers since the last checkpoint
            log_id = self._logs.take_id()
        self._target_moved = self._target_ledgers = 0
        self._target = CompactionLog(
            self._disk, self._directory, log_id, log_bytes_max=self._log_bytes_max
        )
        async with self._writing_target():
            await self._target.begin()

    async def _finish_target(self) -> None:
        target, self._target = self._target, None
        if target is None:
            return
        target.close()
        self._logs.forget_file(target.log_id)
        if self._target_moved:
            async with self._changes.making("noting a compaction log in the index"):
                await self._note_ledgers(target)  # now with all bytes
            self._round.bytes_written += target.bytes_written
        else:
            await self._drop([target.log_id], is_counted=False)

    @asynccontextmanager
    async def _writing_target(self) -> AsyncIterator[None]:
        """A full disk ends the compaction and does no harm; any other failure is that of the
        disk."""
        try:
            yield
        except OSError as error:
            self._moves, self._moves_bytes = [], 0  # their copies are not durable
            if error.errno in _NO_SPACE:
                raise _Ended(f"no space on the disk: {error}") from error
            raise self._changes.failed("writing a compaction log", error) from error

    async def _drop(self, log_ids: Sequence[int], *, is_counted: bool = True) -> None:
        """Removes logs that no run points into, except those that only an operator removes."""
        log_ids = [at for at in log_ids if await is_removable(at, self._index, self._logs)]
        reclaimed = await remove_logs(log_ids, self._index, self._logs, self._changes)
        if is_counted:
            self._round.logs_compacted += len(log_ids)
            self._round.bytes_reclaimed_by_compaction += reclaimed

    # --- bounds

    async def _pace(self, nbytes: int, entries: int = 0) -> None:
        now = trio.current_time()
        if self._buckets is None:
            rates = (self._options.bytes_per_s_max, self._options.entries_per_s_max)
            by_bytes, by_entries = (TokenBucket(rate, rate * BURST_S, now) for rate in rates)
            self._buckets = by_bytes, by_entries
        by_bytes, by_entries = self._buckets
        wait_s = max(by_bytes.take(nbytes, now), by_entries.take(entries, now))
        if wait_s > 0:
            await trio.sleep(wait_s)

    def _check_time(self) -> None:
        if self._end_reason:
            raise _Ended(self._end_reason)
        if trio.current_time() >= self._ends_at:
            self._round.is_time_up = True
            raise _Ended("its time limit is over; the next round continues")


async def remove_logs(
    log_ids: Sequence[int], index: Index, logs: EntryLogs, changes: IndexChanges
) -> int:
    """Removes sealed logs that no run points into; returns the number of bytes freed.

    The index is durable without them before the first file is removed. Raises StorageFailed.
    """
    if not log_ids:
        return 0
    async with changes.making("removing entry logs from the index"):
        for log_id in log_ids:
            index.delete_log(log_id)
        await index.flush()
    reclaimed = 0
    for begin in range(0, len(log_ids), FILES_PER_HOLD):
        async with changes.making("removing entry logs"):
            for log_id in log_ids[begin : begin + FILES_PER_HOLD]:
                try:
                    size = await logs.size(log_id)
                except OSError:
                    size = 0  # it does not exist, or cannot be opened
                if await logs.remove(log_id):
                    reclaimed += size
    return reclaimed


def _run_of(part: PlacedRun, record: LogRecord, body: bytes) -> Run:
    """Returns the part of a record that is needed, as a record of its own."""
    if part == record.run and not record.header.has_sums:
        return Run(part.ledger_id, part.first, part.lengths, record.head, (body,), len(body))
    begin = part.offset - record.run.offset
    piece = memoryview(body)[begin : begin + sum(part.lengths)]
    return make_run(part.ledger_id, part.first, part.lengths, (piece,))
