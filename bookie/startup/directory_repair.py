"""Repairs a ledger directory that a start found damaged, so that it does not cost the bookie.

Only for bookies with several ledger directories: the ledgers in the others are served. A lost index
is rebuilt from the entry logs, and a lost mark replaced by the beginning of the journals, which
have all that came after it. What the directory may have lost is "unknown", never "absent": its
ledgers are in limbo until `bookie.data_integrity` has compared them with the other copies. Anything
else that is wrong with a disk, and all damage in a journal, stops the bookie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bookie.config import BookieConfig
from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.core.journal import BEGINNING, Mark, file_id_of
from bookie.core.marks import DirectoryMap, encode_marks, first_of_last_files
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.check.bookie import MARK_FILE
from bookie.storage.check.index_rebuild import INDEX, IndexRebuild, IndexStores
from bookie.storage.disk.disk import Disk
from bookie.storage.index.key_value import IndexDamaged
from bookie.storage.integrity_state import write_integrity_state
from bookie.storage.options import DirectoryDamaged, MarkDamaged

_log = logging.getLogger(__name__)

_CURE = (
    "Its ledgers are in limbo until they were compared with the other bookies; the ledgers in "
    "other directories are served. Cure: check the disk; if it fails again, replace it"
)


async def start_storage(
    make: Callable[[], BookieStorage],
    config: BookieConfig,
    disk: Disk,
    stores: IndexStores | None,
    layout: DirectoryMap,
) -> BookieStorage:
    """Returns a started storage, after repairing each damaged ledger directory if there are others.

    Args:
        make: returns a new storage.
        stores: the index stores; None: nothing is repaired.
        layout: which ledgers are in each directory.

    Raises what `BookieStorage.start` raises: the bookie must not start. A directory whose repair
    did not help is not repaired again.
    """
    repaired: dict[tuple[int, bool], None] = {}
    while True:
        storage: BookieStorage | None = None
        try:
            storage = make()
            await storage.start()
        except DirectoryDamaged as damage:
            if storage is not None:
                storage.close()
            kind = damage.number, isinstance(damage.cause, MarkDamaged)
            if stores is None or len(config.ledger_directories) < 2 or kind in repaired:
                raise
            repaired[kind] = None
            await repair_directory(config, disk, stores, layout, damage)
        except BaseException:
            if storage is not None:
                storage.close()
            raise
        else:
            return storage


async def repair_directory(
    config: BookieConfig,
    disk: Disk,
    stores: IndexStores,
    layout: DirectoryMap,
    damage: DirectoryDamaged,
) -> None:
    """Repairs one directory of a bookie whose storage is closed. It may be killed at any point: the
    next start repairs again. Raises BookieIoError, OSError if that is impossible."""
    directory = config.ledger_directories[damage.number]
    is_mark_lost = isinstance(damage.cause, MarkDamaged)
    _log.error(
        "ledger directory damaged directory=%s cause=%s. The bookie repairs it now: %s",
        directory,
        damage.cause,
        "it replays its journals from their beginning"
        if is_mark_lost
        else "it rebuilds the index, which takes one reading of the entry logs",
    )
    if is_mark_lost:
        await _replace_marks(config, disk, stores, layout, damage)
        _log.error("ledger directory repaired directory=%s. %s", directory, _CURE)
        return
    done = await IndexRebuild(disk, directory, stores).run()
    _log.error(
        "ledger directory repaired directory=%s entry_logs=%d entries=%d left_out=%d first=%s "
        "old_index=%s. %s",
        directory,
        done.entry_logs,
        done.entries,
        done.left_out_count,
        next(iter(done.left_out), "-"),
        done.old_index or "-",
        _CURE,
    )


async def _replace_marks(
    config: BookieConfig,
    disk: Disk,
    stores: IndexStores,
    layout: DirectoryMap,
    damage: DirectoryDamaged,
) -> None:
    number = damage.number
    directory = config.ledger_directories[number]
    marks: dict[int, Mark] = {}
    for journal in layout.journals_of(number):
        names = await disk.list_directory(config.journal_directories[journal])
        first = first_of_last_files(one for name in names if (one := file_id_of(name)) is not None)
        marks[journal] = Mark(first, 0) if first else BEGINNING
    await _record_doubt(stores, directory, str(damage.cause))
    stored = layout.to_store(number, 0, marks)
    await disk.replace_file(f"{directory}/{MARK_FILE}", encode_marks(stored))


async def _record_doubt(stores: IndexStores, directory: str, cause: str) -> None:
    """Records that the directory may have lost entries, before anything looks whole again."""
    try:
        pairs = stores.open(f"{directory}/{INDEX}", is_read_only=False)
    except IndexDamaged:
        return  # the next attempt finds that, and rebuilds it, which records the same
    try:
        reason = f"the marks of the journals were lost: {cause}"
        write_integrity_state(pairs, IntegrityState(IntegrityStage.LEDGERS_UNKNOWN, reason))
        await pairs.flush()
    finally:
        pairs.close()
