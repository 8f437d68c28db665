"""What the files of a stopped bookie themselves record about lost entries."""

from __future__ import annotations

from bookie.core.integrity import CheckReport, Finding, Severity
from bookie.core.integrity_state import IntegrityStage
from bookie.storage.disk.disk import Disk
from bookie.storage.entry_log.entry_logs import stray_id_of
from bookie.storage.index.key_value import KeyValue
from bookie.storage.integrity_state import read_integrity_state
from ledger.errors import BookieIoError

REBUILD = "`ledgerstream bookie rebuild-index`, with the bookie stopped"
REPLICATE = (
    "check the disk; readers and recovery ask other bookies. When the copies are restored "
    "elsewhere, the log is removed with its ledgers"
)
NOT_NEEDED = (
    "something was left out of it when the index was rebuilt, and nothing in the index points "
    "into it: when no ledger is in limbo any more, it may be removed"
)
_STAGES = {
    IntegrityStage.LEDGERS_UNKNOWN: (
        "entries may have been forgotten, of ledgers not known here, too"
    ),
    IntegrityStage.LEDGERS_IN_LIMBO: "entries may have been forgotten, of ledgers in limbo",
}
_DOUBT_CURE = (
    "start the bookie: it denies nothing that it may have forgotten, and fetches it from the other "
    "copies; it is over when ledgers_in_limbo is 0"
)
_STRAY_CURE = (
    "see 'Entry logs the index does not know' in docs/operations.md: where the index is older "
    "than the logs, give the file its name back and rebuild the index; else remove it"
)


def unread_index(error: BookieIoError) -> tuple[str, str]:
    """Returns what is wrong, and its cure: that of the error, which is more specific, or
    REBUILD."""
    what, _, cure = str(error).partition(". Cure: ")
    return what, cure or REBUILD


def check_integrity_state(
    directory: str, pairs: KeyValue, in_limbo: int, report: CheckReport
) -> None:
    """Checks the index's own record; `in_limbo` is the number of ledgers in limbo. Raises
    BookieIoError."""
    state = read_integrity_state(pairs)
    if state is not None:
        report.add(
            Finding(
                severity=Severity.DOUBT,
                path=f"{directory}/index",
                what=f"{_STAGES[state.stage]}: {state.reason}",
                cure=_DOUBT_CURE,
            )
        )
    if in_limbo:
        report.add(
            Finding(
                severity=Severity.NOTE,
                path=f"{directory}/index",
                what=f"{in_limbo} ledgers are in limbo: what is not here of them is unknown, not "
                "absent, to readers, and the bookie fetches it when they are closed",
            )
        )


async def check_strays(disk: Disk, directory: str, report: CheckReport) -> None:
    """Reports entry logs that a start did not know, and kept. Raises OSError."""
    for name in await disk.list_directory(directory):
        if stray_id_of(name) is not None:
            report.add(
                Finding(
                    severity=Severity.DOUBT,
                    path=f"{directory}/{name}",
                    what="a start set this entry log aside, because its index did not know it and "
                    "something was missing: it may hold the only copies of entries",
                    cure=_STRAY_CURE,
                )
            )
