"""The report about the files beside a journal while the bookie does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.config import BookieConfig
from bookie.core.integrity import CheckReport, Severity
from bookie.startup.cookies import EMPTIED, UNSYNCED_FILE
from bookie.startup.offline import check_unsynced
from bookie.startup.power_loss import REASON, REASON_EMPTIED, REASON_SYNC_FAILED, SYNC_FAILED
from bookie.storage.disk.real_disk import RealDisk


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (b"another-boot", REASON),
        (EMPTIED, REASON_EMPTIED),
        (SYNC_FAILED, REASON_SYNC_FAILED),
        (b"this-boot", None),
        (None, None),
    ],
)
async def test_a_journal_with_unsynced_entries_is_reported(
    tmp_path: Path, found: bytes | None, reason: str | None
) -> None:
    (tmp_path / "journal").mkdir()
    if found is not None:
        (tmp_path / "journal" / UNSYNCED_FILE).write_bytes(found)
    config = BookieConfig(
        metadata_uri="memory:",
        journal_directories=(f"{tmp_path}/journal",),
        ledger_directories=(f"{tmp_path}/ledgers",),
    )
    report = CheckReport()
    await check_unsynced(config, RealDisk(), "this-boot", report)
    assert report.is_clean == (reason is None)
    assert [finding.severity for finding in report.findings] == [Severity.DOUBT] * (
        not report.is_clean
    )
    assert all(str(reason) in finding.what for finding in report.findings)
