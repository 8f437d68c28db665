"""What the files of a stopped bookie say themselves of what it may have forgotten."""

from __future__ import annotations

from bookie.core.integrity import CheckReport, Finding, Severity
from bookie.storage.disk import Disk
from bookie.storage.entry_log import stray_id_of

REBUILD = "`ledgerstream bookie rebuild-index`, with the bookie stopped"
REPLICATE = (
    "see to the disk; readers and recovery ask other bookies. When the copies are made "
    "again elsewhere, the log goes with its ledgers"
)
NOT_NEEDED = (
    "something was left out of it when the index was made again, and nothing in the index points "
    "into it: when no ledger is in limbo any more, it may be removed"
)
_STRAY_CURE = (
    "see 'Entry logs the index does not know' in docs/operations.md: where the index is older "
    "than the logs, give the file its name back and make the index again; else remove it"
)


async def check_strays(disk: Disk, directory: str, report: CheckReport) -> None:
    """Entry logs of a ledger directory that a start did not know, and kept. Raises OSError."""
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
