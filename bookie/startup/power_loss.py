"""Whether the machine stopped while a journal owed the disk what it had acknowledged.

Only journals with `journal_sync_data = false` owe anything. While one serves, its directory has a
file, `UNSYNCED`, with the machine's boot id. A start that finds another boot id in it puts all
ledgers of that journal in doubt; a killed process alone loses nothing, for the page cache outlives
it. An orderly stop syncs the journal and takes the file away, so that planned restarts of a
machine cost nothing (docs/adr/0024).

A sync that failed is as bad: the system takes its pages for written, keeps them as long as it
likes, and no later sync writes them. So the file then says that, and the next start doubts, too.

What only the machine can tell, for the roots of processes and commands.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import trio

from bookie.config import BookieConfig
from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.core.journal import file_id_of
from bookie.startup.cookies import EMPTIED, UNSYNCED_FILE
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.disk.disk import Disk

_log = logging.getLogger(__name__)

REASON = (
    "power was lost, or the machine stopped without stopping the bookie, while journal_sync_data "
    "was false"
)
SYNC_FAILED = b"a sync failed"
"""In that file: what the journal acknowledged before may be gone, though the machine is up."""
REASON_SYNC_FAILED = "the journal failed while journal_sync_data was false"
REASON_EMPTIED = (
    "the bookie was started with empty directories, in a cluster that has ledgers of its id"
)
_REASONS = {EMPTIED: REASON_EMPTIED, SYNC_FAILED: REASON_SYNC_FAILED}
_SYNC_S_MAX = 20.0


def doubt_of(found: bytes | None, boot: str) -> str | None:
    """Why a start doubts that finds this in the file, or no file; None if it does not."""
    return None if found in (None, boot.encode()) else _REASONS.get(found or b"", REASON)


@asynccontextmanager
async def noticing_power_loss(
    config: BookieConfig, disk: Disk, storage: BookieStorage, boot: str
) -> AsyncIterator[None]:
    """Around serving, after the replay and before doubts are settled. `boot`: the machine's
    boot id; "" if it never stops. Raises OSError, StorageFailed: the bookie must not serve."""
    is_owing = bool(boot) and not config.journal_sync_data
    for number, directory in enumerate(config.journal_directories):
        path = f"{directory}/{UNSYNCED_FILE}"
        try:
            found = await disk.read_file(path)
        except FileNotFoundError:
            found = None
        if (reason := doubt_of(found, boot)) is not None:
            for ledger_directory in storage.layout.directories_of(number):
                integrity = storage.directories[ledger_directory].integrity
                await integrity.set_state(IntegrityState(IntegrityStage.LEDGERS_UNKNOWN, reason))
        # Not before the doubts are durable.
        if is_owing:
            await disk.replace_file(path, boot.encode())
        elif found is not None:
            await disk.remove(path)
            await disk.sync_directory(directory)
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
                        await _note_failure(directory, disk)
                    elif storage.failure is None:
                        await _pay_debts(directory, disk)


async def _pay_debts(directory: str, disk: Disk) -> None:
    """Nothing is written any more. A file is synced before the next one is begun, so only the
    newest can owe anything."""
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
        # The file stays, or comes back: then the next start of the machine doubts.
        _log.warning("journal not synced at the end directory=%s cause=%s", directory, error)
    if not is_synced:
        await _note_failure(directory, disk)


async def _note_failure(directory: str, disk: Disk) -> None:
    try:
        await disk.replace_file(f"{directory}/{UNSYNCED_FILE}", SYNC_FAILED)
    except OSError as error:
        _log.warning(
            "a journal failed that had acknowledged entries before syncing them, and that could "
            "not be noted directory=%s cause=%s. Cure: unless the machine is started again before "
            "the bookie is, write '%s' to %s there, so that it denies nothing it may have lost",
            directory,
            error,
            SYNC_FAILED.decode(),
            UNSYNCED_FILE,
        )


def boot_id() -> str:
    """Another one after each start of the machine; where nobody tells, after each call."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(uuid4())
