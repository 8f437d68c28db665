"""Checks the journals of a stopped bookie, as a replay would read them, without changing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bookie.core.integrity import CheckReport, Finding, Severity
from bookie.core.journal import (
    BEGINNING,
    BLOCK_BYTES,
    JournalCorrupt,
    Mark,
    decode_end,
    decode_group_header,
    file_id_of,
    file_name,
)
from bookie.core.journal_frames import FrameCorrupt, decode_frame, iterate_frames
from bookie.core.journal_scan import FileScanner, Group
from bookie.storage.disk.disk import Disk, File
from bookie.storage.journal.end_marker import END_FILE
from bookie.storage.yielding import yield_to_tasks
from ledger.wire.v2 import ledger_of_add

_CURE = (
    "restore the file as it was; or set all directories of this bookie aside, start it empty "
    "under a new id, and let the other copies be replicated"
)


_END_CURE = (
    "restore the file as it was; or start the bookie: it treats all ledgers of this journal as "
    "unknown, and fetches what is lost from the other copies"
)


_END_FILE_CURE = (
    "start the bookie, which writes it again, and let `ledgerstream stream verify` compare what it "
    "has with the other copies"
)


_FRAMES_PER_STEP = 100


class JournalCheck:
    """Checks one journal directory, from the least of the marks on: what is before is not needed.

    Args:
        marks: of the directories that depend on it, by their number; a directory whose marks
            cannot be read is left out, and then the beginning of the journal is not checked.
        on_bytes: called with the bytes read since the last call.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        number: int,
        journals: int,
        marks: Mapping[int, Mark],
        report: CheckReport,
        *,
        are_marks_known: bool,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._number = number
        self._journals = journals
        self._marks = marks
        self._report = report
        self._is_begin_known = are_marks_known
        self._on_bytes = on_bytes
        self._unseen = {d: mark for d, mark in marks.items() if mark != BEGINNING}
        self._end = BEGINNING
        """The end of the last whole group."""

    async def run(self) -> None:
        """Runs the check. Raises OSError only if the directory cannot be listed."""
        names = await self._disk.list_directory(self._directory)
        every = [at for name in names if (at := file_id_of(name)) is not None]
        mark = BEGINNING
        if self._is_begin_known:
            mark = min(self._marks.values())
            ids = [at for at in every if at >= max(mark.file_id, 1)]
            self._check_names(ids, max(mark.file_id, 1), mark)
        else:
            ids = every
            self._check_names(ids, ids[0] if ids else 1, mark)
        damage_before = self._report.found[Severity.DAMAGE]
        known_start = self._is_begin_known and mark == BEGINNING
        last_sequence: int | None = 0 if known_start else None
        is_next = False
        for file_id in ids:
            start = mark.offset if file_id == mark.file_id else 0
            is_last = file_id == ids[-1]
            damage = self._report.found[Severity.DAMAGE]
            last_sequence = await self._check_file(
                file_id, start, last_sequence, is_next=is_next, is_last=is_last
            )
            # After a damaged file nothing is expected of the next one.
            is_next = damage == self._report.found[Severity.DAMAGE]
        for directory, unseen in self._unseen.items():
            self._damage(
                file_name(unseen.file_id),
                unseen.offset,
                f"no group ends at this mark of ledger directory {directory}",
            )
        if self._report.found[Severity.DAMAGE] == damage_before:  # otherwise its end is unknown
            await self._check_end(max(mark, self._end))

    async def _check_end(self, found: Mark) -> None:
        try:
            data = await self._disk.read_file(f"{self._directory}/{END_FILE}")
        except FileNotFoundError:
            return  # of a version that did not write it, or never started
        except OSError as error:
            self._damage(END_FILE, None, f"it cannot be read: {error}")
            return
        recorded = decode_end(data)
        # A journal that was killed before its first group may have no end marker yet.
        if recorded is None and (data or found != BEGINNING):
            end = f"offset {found.offset} of {file_name(found.file_id)}"
            self._report.add(
                Finding(
                    severity=Severity.DOUBT,
                    path=f"{self._directory}/{END_FILE}",
                    what="it is damaged, and only it could show whether groups are missing at the "
                    f"end of this journal, {end if found != BEGINNING else 'which has no groups'}",
                    cure=_END_FILE_CURE,
                )
            )
        if recorded is not None and recorded > found:
            self._damage(
                file_name(recorded.file_id),
                recorded.offset,
                f"it was acknowledged up to here, and the journal ends at offset {found.offset} of "
                f"{file_name(found.file_id)}",
                cure=_END_CURE,
            )

    def _check_names(self, ids: list[int], first: int, mark: Mark) -> None:
        """Every file from the mark on must exist."""
        expected = first
        for file_id in ids:
            if file_id > expected:
                self._damage(file_name(expected), None, "the file is missing")
            expected = file_id + 1
        if not ids and mark != BEGINNING:
            self._damage(file_name(first), None, "the file is missing, and the mark is in it")

    async def _check_file(
        self,
        file_id: int,
        start: int,
        last_sequence: int | None,
        *,
        is_next: bool,
        is_last: bool,
    ) -> int | None:
        """Returns the last sequence number in the file, None if it is unknown."""
        name = file_name(file_id)
        self._report.journal_files += 1
        try:
            file = await self._disk.open(f"{self._directory}/{name}")
        except OSError as error:
            self._damage(name, None, f"it cannot be opened: {error}")
            return None
        try:
            scanner = FileScanner(
                name,
                file_id,
                file.size,
                last_sequence=last_sequence,
                start=start,
                is_next=is_next,
            )
            self._seen(Mark(file_id, start))
            while (wanted := scanner.wanted) is not None:
                data = await file.read(*wanted)
                self._on_bytes(len(data))
                for group in scanner.feed(data):
                    self._end = Mark(file_id, group.end)
                    self._seen(self._end)
                    await self._check_group(name, group)
                    await yield_to_tasks()
            if is_last:
                await self._look_at_end(file, name, scanner)
        except JournalCorrupt as error:
            self._damage(name, error.offset, str(error).partition(". Acknowledged")[0])
            return None
        except OSError as error:
            self._damage(name, None, f"it cannot be read: {error}")
            return None
        finally:
            file.close()
        return scanner.last_sequence

    def _seen(self, place: Mark) -> None:
        for directory in [d for d, mark in self._unseen.items() if mark == place]:
            del self._unseen[directory]

    async def _check_group(self, name: str, group: Group) -> None:
        self._report.journal_groups += 1
        try:
            for number, frame in enumerate(iterate_frames(group.payload), 1):
                if number % _FRAMES_PER_STEP == 0:
                    await yield_to_tasks()
                self._report.journal_frames += 1
                own = decode_frame(frame)
                ledger_id = ledger_of_add(frame) if own is None else own.ledger_id
                if ledger_id % self._journals != self._number:
                    self._damage(
                        name,
                        group.offset,
                        f"a frame of ledger {ledger_id}, which belongs to journal "
                        f"{ledger_id % self._journals} of {self._journals}",
                        cure="disks are mounted in each other's place: mount each where it was",
                    )
                    return
        except FrameCorrupt as error:
            self._damage(name, group.offset, str(error))

    async def _look_at_end(self, file: File, name: str, scanner: FileScanner) -> None:
        """Examines the last group of all, after which nothing proves that it was durable once."""
        end = max(scanner.end, BLOCK_BYTES)
        head = decode_group_header(await file.read(end, BLOCK_BYTES), 0)
        if head is not None and head.file_id == scanner.file_id:
            self._report.add(
                Finding(
                    severity=Severity.NOTE,
                    path=f"{self._directory}/{name}",
                    offset=end,
                    what=f"a last group with {head.frames} frames is incomplete: power was lost "
                    "while it was written, before it was acknowledged; or it was damaged later, "
                    "which looks the same. The next start drops it",
                )
            )

    def _damage(self, name: str, offset: int | None, what: str, *, cure: str = _CURE) -> None:
        path = f"{self._directory}/{name}"
        self._report.add(
            Finding(severity=Severity.DAMAGE, path=path, offset=offset, what=what, cure=cure)
        )
