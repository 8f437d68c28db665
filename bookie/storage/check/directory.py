"""Checks one ledger directory of a stopped bookie: index and entry logs against each other.

It reads the index once, then each entry log once. It holds a record of an entry log in memory (half
a MiB, or one entry) and a few numbers for each log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import trio

from bookie.core.entry_log import FILE_HEADER_BYTES, check_file_header, entry_ends
from bookie.core.integrity import (
    FINDINGS_MAX,
    BodyCheck,
    CheckReport,
    Finding,
    Severity,
    check_entries,
    ranges_of,
)
from bookie.storage.check.findings import NOT_NEEDED, REBUILD, REPLICATE, unread_index
from bookie.storage.disk.disk import Disk, File
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.entry_log.scan import LogRecord, LogScanner
from bookie.storage.garbage.compaction_index import CompactionIndex
from bookie.storage.index.index import Index, PlacedRun, decode_run, ledger_of_run_key
from bookie.storage.index.key_value import KeyValue
from ledger.errors import BookieIoError

_STEP = 200


class DirectoryCheck:
    """The check of one directory; `run` once.

    Args:
        pairs: the index; None if it cannot be opened, and then only the logs are read.
        on_bytes: called with the bytes read since the last call.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        pairs: KeyValue | None,
        report: CheckReport,
        *,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._pairs = pairs
        self._index = None if pairs is None else Index(pairs)
        self._places = None if pairs is None else CompactionIndex(Index(pairs), pairs)
        self._report = report
        self._on_bytes = on_bytes
        self._logs = EntryLogs(disk, directory, log_bytes_max=1)
        self._sizes: dict[int, int] = {}
        self._body_bytes: Counter[int] = Counter()
        """By log: bytes of the entries that the index points to."""
        self._ledger_id = self._last = -1
        self._reported: dict[tuple[int, int, int, str], None] = {}

    async def run(self) -> None:
        """Runs the check. Raises OSError only if the directory cannot be listed."""
        for log_id in await self._logs.start():
            try:
                self._sizes[log_id] = await self._logs.size(log_id)
            except OSError as error:
                self._found(self._logs.path(log_id), f"it cannot be opened: {error}")
        try:
            indexed = await self._check_index()
        except BookieIoError as error:
            self._found(f"{self._directory}/index", *unread_index(error))
            self._index = self._places = None
            indexed = {}
        for log_id in sorted(self._sizes):
            await self._check_log(log_id, indexed)
        self._logs.close()

    # --- index

    async def _check_index(self) -> dict[int, None]:
        """Checks the index and returns the entry logs it knows. Raises BookieIoError where it
        cannot be read."""
        index, pairs = self._index, self._pairs
        if index is None or pairs is None:
            return {}
        path = f"{self._directory}/index"
        indexed = dict.fromkeys(index.log_ids())
        for log_id, reason in index.logs_set_aside().items():
            self._found(
                self._logs.path(log_id),
                f"set aside as damaged before: {reason}",
                severity=Severity.NOTE,
            )
        for log_id in indexed:
            index.log_ledgers(log_id)
        every = pairs.items(b"E", b"F")
        while step := list(islice(every, _STEP)):
            for key, value in step:
                try:
                    run = decode_run(key, value)
                except BookieIoError as error:
                    whose = ledger_of_run_key(key) if len(key) == 17 else None
                    self._found(path, *unread_index(error), ledger_id=whose)
                    continue
                self._check_run(run, indexed)
            await trio.lowlevel.checkpoint()
        await self._check_states(index)
        for log_id in indexed:
            if log_id not in self._sizes and not self._body_bytes[log_id]:
                self._found(
                    self._logs.path(log_id),
                    "the index knows this log, but the file is gone. Nothing points into it",
                    severity=Severity.NOTE,
                )
        return indexed

    def _check_run(self, run: PlacedRun, indexed: dict[int, None]) -> None:
        assert self._index is not None
        self._report.runs += 1
        self._report.entries += len(run.lengths)
        if run.ledger_id != self._ledger_id:
            self._ledger_id, self._last = run.ledger_id, -1
            if not self._index.has_state(run.ledger_id):
                self._run_found(
                    run, "the index has entries of this ledger, but not its state", cure=REBUILD
                )
        if run.first <= self._last:
            self._run_found(run, f"runs overlap: one before goes to {self._last}", cure=REBUILD)
        self._last = max(self._last, run.last)
        size = sum(run.lengths)
        self._body_bytes[run.log_id] += size
        file_size = self._sizes.get(run.log_id)
        if file_size is None:
            self._run_found(run, "the index points to them, but the entry log is gone")
        elif run.offset < FILE_HEADER_BYTES or run.offset + size > file_size:
            self._run_found(run, f"they end after the end of the file, which has {file_size} bytes")
        elif run.log_id not in indexed:
            self._run_found(
                run,
                "the index points to them, but does not know the log: the next start would "
                "remove it",
                cure=REBUILD,
            )

    async def _check_states(self, index: Index) -> None:
        after = -1
        while ledger_ids := index.ledger_ids(after, _STEP):
            for ledger_id in ledger_ids:
                self._report.ledgers += 1
                try:
                    state = index.state(ledger_id)
                    has_entries = index.last_entry_id(ledger_id) >= 0
                except BookieIoError as error:
                    path = f"{self._directory}/index"
                    self._found(path, *unread_index(error), ledger_id=ledger_id)
                    continue
                assert state is not None
                self._report.ledgers_in_limbo += state.is_limbo
                self._report.ledgers_without_entries += not has_entries
            after = ledger_ids[-1]
            await trio.lowlevel.checkpoint()
        self._report.tombstones += len(index.tombstones())

    # --- entry logs

    async def _check_log(self, log_id: int, indexed: dict[int, None]) -> None:
        path = self._logs.path(log_id)
        self._report.entry_logs += 1
        needed = self._body_bytes[log_id]
        if self._index is not None and not needed:
            if log_id not in indexed:
                self._found(
                    path,
                    "the index does not know this log: a checkpoint or a compaction was cut short, "
                    "or it was being removed. The next start removes it, or sets it aside",
                    severity=Severity.NOTE,
                )
            elif self._index.is_log_kept(log_id):
                self._found(path, NOT_NEEDED, severity=Severity.NOTE)
            return
        try:
            file = await self._disk.open(path)
        except OSError as error:
            self._found(path, f"it cannot be opened: {error}")
            return
        try:
            await self._scan_log(log_id, file, needed)
        except OSError as error:
            self._found(path, f"it cannot be read: {error}")
        finally:
            file.close()

    async def _scan_log(self, log_id: int, file: File, needed: int) -> None:
        path = self._logs.path(log_id)
        try:
            check_file_header(await file.read(0, FILE_HEADER_BYTES), log_id)
        except ValueError as error:
            self._found(
                path,
                f"{error}. Its entries are found by the index",
                offset=0,
                severity=Severity.DOUBT,
                cure="none is needed while the index is whole",
            )
        known = {}
        if self._index is not None:
            known = self._index.log_ledgers(log_id)
        scan = LogScanner(file, log_id, on_read=self._count_read)
        found = 0
        while (record := await scan.next()) is not None:
            parts = [record.run]
            if self._places is not None:
                parts = self._places.parts_of(record.run)
            if not parts:
                continue
            found += sum(sum(part.lengths) for part in parts)
            for part in parts:
                if record.run.part(part.first, part.last) != part:
                    self._run_found(part, "the record there has other lengths", cure=REBUILD)
            if self._index is not None and record.run.ledger_id not in known:
                self._run_found(
                    record.run,
                    "the index's record of this log does not name their ledger: the log could "
                    "be removed too early",
                    cure=REBUILD,
                )
            await self._check_record(scan, record, parts)
        rest = file.size - scan.position
        if found < needed:
            await self._check_rest(log_id, scan)
        elif self._index is None and rest:
            self._found(
                path,
                f"no whole record {scan.end_reason}: {rest} bytes are a write cut short, or "
                "damaged. Without an index nobody can say",
                offset=scan.position,
                severity=Severity.DOUBT,
            )

    async def _check_record(
        self, scan: LogScanner, record: LogRecord, parts: list[PlacedRun]
    ) -> None:
        try:
            body = await scan.body(record)
            problem = ""
        except BookieIoError as error:
            problem = str(error)
            body = await self._read(record.run)
        run = record.run
        lengths = run.lengths[: _whole(run, len(body))]
        checked = check_entries(body, lengths, run.ledger_id, run.first)
        self._count_digests(checked)
        if not problem:
            self._report.entry_log_bytes += len(record.head) + len(body)
        living = [range(part.first, part.last + 1) for part in parts]
        self._report_entries(run, checked, living, is_suspect=bool(problem))

    async def _check_rest(self, log_id: int, scan: LogScanner) -> None:
        """Checks, in its own place, what the index points to but is in no whole record. This is a
        pass through the whole index, for damaged logs only."""
        self._found(
            self._logs.path(log_id),
            f"the index needs more than the whole records; those end {scan.end_reason}",
            offset=scan.position,
        )
        for run in self._runs_in(log_id):
            is_behind = run.offset + sum(run.lengths) > scan.position
            body = await self._read(run)
            lengths = run.lengths[: _whole(run, len(body))]
            checked = check_entries(body, lengths, run.ledger_id, run.first)
            if is_behind:
                self._count_digests(checked)
            living = [range(run.first, run.last + 1)]
            self._report_entries(run, checked, living, is_suspect=is_behind)
            if len(lengths) < len(run.lengths):
                self._run_found(
                    run.part(run.first + len(lengths), run.last),
                    "the file ends before them: reads give an I/O error",
                )
            await trio.lowlevel.checkpoint()

    def _runs_in(self, log_id: int) -> Iterator[PlacedRun]:
        assert self._pairs is not None
        for key, value in self._pairs.items(b"E", b"F"):
            try:
                run = decode_run(key, value)
            except BookieIoError:
                continue  # reported before
            if run.log_id == log_id:
                yield run

    async def _read(self, run: PlacedRun) -> bytes:
        """Returns as much of the run as can be read."""
        try:
            file = await self._disk.open(self._logs.path(run.log_id))
        except OSError:
            return b""
        try:
            data = await file.read(run.offset, sum(run.lengths))
        except OSError:
            return b""
        finally:
            file.close()
        self._on_bytes(len(data))
        return data

    async def _count_read(self, nbytes: int) -> None:
        self._on_bytes(nbytes)
        await trio.lowlevel.checkpoint()

    # --- reporting

    def _count_digests(self, checked: BodyCheck) -> None:
        self._report.digests_verified += checked.digests_right
        if not checked.digests_right:
            self._report.digests_unknown += len(checked.unverified)

    def _report_entries(
        self, run: PlacedRun, checked: BodyCheck, living: list[range], *, is_suspect: bool
    ) -> None:
        """`is_suspect`: the checksum of their record is wrong or lost, so entries that no digest
        protects may have changed."""
        suspects = [] if checked.digests_right or not is_suspect else checked.unverified
        for ids, severity, what in (
            (
                checked.strangers,
                Severity.DAMAGE,
                "other bytes are stored there: reads give an I/O error",
            ),
            (checked.wrong_digests, Severity.DAMAGE, "their digest is wrong: readers refuse them"),
            (
                suspects,
                Severity.DOUBT,
                "the checksum of their record is wrong or lost, and no digest vouches for them "
                "that could be checked without a password: readers can",
            ),
        ):
            needed = [at for at in ids if any(at in part for part in living)]
            for first, last in ranges_of(needed):
                self._run_found(run.part(first, last), what, severity=severity)

    def _run_found(
        self,
        run: PlacedRun,
        what: str,
        *,
        severity: Severity = Severity.DAMAGE,
        cure: str = REPLICATE,
    ) -> None:
        key = (run.ledger_id, run.first, run.last, what)
        if key in self._reported:
            return
        if len(self._reported) < FINDINGS_MAX:
            self._reported[key] = None
        self._report.add(
            Finding(
                severity=severity,
                path=self._logs.path(run.log_id),
                offset=run.offset,
                what=what,
                ledger_id=run.ledger_id,
                first_entry=run.first,
                last_entry=run.last,
                cure="" if severity is Severity.NOTE else cure,
            )
        )

    def _found(
        self,
        path: str,
        what: str,
        cure: str = REPLICATE,
        *,
        offset: int | None = None,
        ledger_id: int | None = None,
        severity: Severity = Severity.DAMAGE,
    ) -> None:
        self._report.add(
            Finding(
                severity=severity,
                path=path,
                offset=offset,
                what=what,
                ledger_id=ledger_id,
                cure="" if severity is Severity.NOTE else cure,
            )
        )


def _whole(run: PlacedRun, nbytes: int) -> int:
    """Returns how many entries of the run are wholly in its first `nbytes` bytes."""
    return bisect_right(entry_ends(run.lengths), nbytes)
