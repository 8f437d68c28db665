"""Detects that the machine stopped while acknowledged entries of a journal were not synced.

Only journals with `journal_sync_data = false` have such entries. While one serves, its directory
has a file `UNSYNCED` with the boot id of the machine. A start that finds another boot id treats all
ledgers of that journal as unverified; a killed process alone loses nothing, because the page cache
outlives it. An orderly stop syncs the journal and removes the file, so that planned restarts of a
machine cost nothing (docs/adr/0024).

A failed sync is as bad: the system marks its pages as clean, keeps them for an unknown time, and no
later sync writes them. The file records that, too, and the next start treats the ledgers as
unverified.

A directory that was put back to an older state (`bookie.startup.start_count`) has the file, too; in
a ledger directory it concerns the ledgers of that directory alone.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import trio

from bookie.config import BookieConfig
from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.core.journal import file_id_of
from bookie.startup.cookies import EMPTIED, PUT_BACK, UNSYNCED_FILE
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.disk.disk import Disk

_log = logging.getLogger(__name__)

REASON = (
    "power was lost, or the machine stopped without stopping the bookie, while journal_sync_data "
    "was false"
)
SYNC_FAILED = b"a sync failed"
"""Content of the file: acknowledged entries may be lost although the machine did not stop."""
REASON_SYNC_FAILED = "the journal failed while journal_sync_data was false"
REASON_EMPTIED = (
    "the bookie was started with empty directories, in a cluster that has ledgers of its id"
)
REASON_PUT_BACK = "a directory of the bookie was put back to an older state"
_REASONS = {
    EMPTIED: REASON_EMPTIED, PUT_BACK: REASON_PUT_BACK, SYNC_FAILED: REASON_SYNC_FAILED,
}  # fmt: skip
_SYNC_S_MAX = 20.0


def reason_unverified(found: bytes | None, boot: str) -> str | None:
    """Returns why entries may be lost, given the content of the file (None: no file), or None if
    they are not."""
    return None if found in (None, boot.encode()) else _REASONS.get(found or b"", REASON)


@asynccontextmanager
async def noticing_power_loss(
    config: BookieConfig, disk: Disk, storage: BookieStorage, boot: str
) -> AsyncIterator[None]:
    """Encloses serving, after the replay and before the data integrity check.

    `boot` is the boot id of the machine; "" if it never stops. Raises OSError and StorageFailed:
    then the bookie must not serve.
    """
    is_owing = bool(boot) and not config.journal_sync_data
    for number, directory in enumerate(config.journal_directories):
        depending = storage.layout.directories_of(number)
        await _settle(disk, directory, storage, depending, boot, is_owing=is_owing)
    for number, directory in enumerate(config.ledger_directories):
        await _settle(disk, directory, storage, [number], boot, is_owing=False)
    try:
        yield
    finally:
        if is_owing:
            with trio.move_on_after(_SYNC_S_MAX) as scope:
                scope.shield = True
                for directory, journal in zip(
                    config.journal_directories, storage.journals, strict=True
                ):
                    if journal.failure is not None:
                        await _record_failure(directory, disk)
                    elif storage.failure is None:
                        await _sync_and_remove_file(directory, disk)


async def _settle(
    disk: Disk,
    directory: str,
    storage: BookieStorage,
    depending: Iterable[int],
    boot: str,
    *,
    is_owing: bool,
) -> None:
    """Puts the ledger directories `depending` into the state that requires an integrity check, if
    the file in `directory` says so, and then replaces or removes the file."""
    path = f"{directory}/{UNSYNCED_FILE}"
    try:
        found = await disk.read_file(path)
    except FileNotFoundError:
        found = None
    if (reason := reason_unverified(found, boot)) is not None:
        for number in depending:
            integrity = storage.directories[number].integrity
            await integrity.set_state(IntegrityState(IntegrityStage.LEDGERS_UNKNOWN, reason))
    # Not before the states of the directories are durable.
    if is_owing:
        await disk.replace_file(path, boot.encode())
    elif found is not None:
        await disk.remove(path)
        await disk.sync_directory(directory)


async def _sync_and_remove_file(directory: str, disk: Disk) -> None:
    """Syncs the journal after its last write and removes the file. A journal file is synced before
    the next one is begun, so only the newest can be unsynced."""
    is_synced = False
    try:
        names = await disk.list_directory(directory)
        newest = max((name for name in names if file_id_of(name) is not None), default=None)
        if newest is not None:
            file = await disk.open(f"{directory}/{newest}")
            try:
                await file.sync()
            finally:
                file.close()
        is_synced = True
        await disk.remove(f"{directory}/{UNSYNCED_FILE}")
        await disk.sync_directory(directory)
    except OSError as error:
        # The file stays, or reappears after a crash: then the next start counts entries as lost.
        _log.warning(
            "the last writes of a journal are not synced directory=%s cause=%s", directory, error
        )
    if not is_synced:
        await _record_failure(directory, disk)


async def _record_failure(directory: str, disk: Disk) -> None:
    try:
        await disk.replace_file(f"{directory}/{UNSYNCED_FILE}", SYNC_FAILED)
    except OSError as error:
        _log.warning(
            "the failed sync of a journal that acknowledges entries before syncing them could not "
            "be recorded directory=%s cause=%s. Cure: unless the machine is restarted before the "
            "bookie, write '%s' to %s there, so that lost entries are not denied",
            directory,
            error,
            SYNC_FAILED.decode(),
            UNSYNCED_FILE,
        )


def boot_id() -> str:
    """Returns an id of the current start of the machine, or a new id where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(uuid4())
