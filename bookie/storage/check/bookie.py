"""Checks everything that a stopped bookie has on its disks. Changes nothing.

It finds what a start would refuse, what reads would fail on, and what garbage collection would
remove too early. Whether entries are missing that nothing here points to, only other bookies know:
`ledgerstream stream verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookie.core.integrity import CheckReport, Finding, Severity
from bookie.core.journal import Mark
from bookie.core.marks import DirectoryMap, StoredMarks, decode_marks
from bookie.storage.check.directory import DirectoryCheck
from bookie.storage.check.findings import REBUILD, check_integrity_state, check_strays, unread_index
from bookie.storage.disk.disk import Disk
from bookie.storage.index.index import Index
from bookie.storage.index.key_value import KeyValue
from bookie.storage.journal.check import JournalCheck
from ledger.errors import BookieIoError

MARK_FILE = "lastmark"
_MARK_CURE = (
    "remove the file if the journal is whole from its first file on; else set this bookie's "
    "directories aside and replicate"
)


async def check_bookie(
    disk: Disk,
    journals: Sequence[str],
    directories: Sequence[str],
    open_index: Callable[[str], KeyValue],
    report: CheckReport,
    *,
    layout: DirectoryMap | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Fills `report`.

    Args:
        journals, directories: paths, in the order of the bookie's settings.
        open_index: opens the index at a path for reading; raises BookieIoError.
        layout: which ledgers are in each directory; None: the list was never changed.
        on_bytes: called with the bytes read since the last call.
    """
    layout = layout or DirectoryMap(len(journals), len(directories))
    marks: list[dict[int, Mark] | None] = []
    for number, directory in enumerate(directories):
        stored = await _marks_of(disk, directory, number, layout, report)
        in_limbo_before = report.ledgers_in_limbo
        pairs = _opened(f"{directory}/index", open_index, report)
        try:
            if stored is not None and pairs is not None:
                _check_number(directory, stored, pairs, report)
            await DirectoryCheck(disk, directory, pairs, report, on_bytes=on_bytes).run()
            if pairs is not None:
                in_limbo = report.ledgers_in_limbo - in_limbo_before
                _check_doubt(directory, pairs, in_limbo, report)
            await check_strays(disk, directory, report)
        finally:
            if pairs is not None:
                pairs.close()
        marks.append(None if stored is None else dict(stored.marks))
    for number, path in enumerate(journals):
        dependent = {d: marks[d] for d in layout.directories_of(number)}
        known = {d: found[number] for d, found in dependent.items() if found is not None}
        await JournalCheck(
            disk,
            path,
            number,
            len(journals),
            known,
            report,
            are_marks_known=len(known) == len(dependent),
            on_bytes=on_bytes,
        ).run()


def _opened(
    path: str, open_index: Callable[[str], KeyValue], report: CheckReport
) -> KeyValue | None:
    try:
        return open_index(path)
    except BookieIoError as error:
        what, cure = unread_index(error)
        report.add(Finding(severity=Severity.DAMAGE, path=path, what=what, cure=cure))
        return None


async def _marks_of(
    disk: Disk, directory: str, number: int, layout: DirectoryMap, report: CheckReport
) -> StoredMarks | None:
    """Returns None if the file cannot be read or belongs elsewhere."""
    path = f"{directory}/{MARK_FILE}"
    try:
        found = decode_marks(await disk.read_file(path))
    except FileNotFoundError:
        return layout.to_store(number, 0, layout.first_marks(number))
    except (OSError, ValueError) as error:
        report.add(Finding(severity=Severity.DAMAGE, path=path, what=str(error), cure=_MARK_CURE))
        return None
    try:
        return layout.check_marks(number, found)
    except ValueError as error:
        what, _, cure = str(error).partition(". Cure: ")
        report.add(Finding(severity=Severity.DAMAGE, path=path, what=what, cure=cure))
        return None


def _check_doubt(directory: str, pairs: KeyValue, in_limbo: int, report: CheckReport) -> None:
    try:
        check_integrity_state(directory, pairs, in_limbo, report)
    except BookieIoError:
        pass  # reported when the index was read


def _check_number(
    directory: str, stored: StoredMarks, pairs: KeyValue, report: CheckReport
) -> None:
    try:
        indexed = Index(pairs).checkpoint_no
    except BookieIoError:
        return  # reported when the index is read
    if indexed < stored.checkpoint_no:
        report.add(
            Finding(
                severity=Severity.DAMAGE,
                path=f"{directory}/index",
                what=f"it has checkpoint {indexed}, but {MARK_FILE} says {stored.checkpoint_no}: "
                "it is not the index that was used last",
                cure=f"restore that one; or {REBUILD}",
            )
        )
