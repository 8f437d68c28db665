"""Changes the list of ledger directories of a stopped bookie: adds new ones, or drops lost ones.

Both follow one procedure. The next layout is written into every directory; then the cluster's
cookie names the next list, which makes the change valid; then the cookies of the directories do. A
change that was interrupted before is as if it had never begun; after that the bookie does not start
until the command was repeated, which completes it.

No entry moves. A ledger that the bookie has stays in its directory, except those of a dropped one:
they are unknown at the next start, and restored from the other copies (`bookie.data_integrity`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bookie.config import BookieConfig
from bookie.core.directories import DirectoryLayout
from bookie.core.integrity_state import IntegrityStage
from bookie.core.journal import BEGINNING, Mark, file_id_of
from bookie.core.marks import DirectoryMap, first_of_last_files
from bookie.startup.cookies import COOKIE_FILE, NO_DATA, START_COUNT_FILE, UNSYNCED_FILE, cookie_of
from bookie.startup.directory_layout import (
    DIRECTORIES_FILE,
    in_force,
    map_of,
    read_layouts,
    write_layouts,
)
from bookie.startup.offline import stopped_bookie
from bookie.startup.power_loss import reason_unverified
from bookie.startup.preflight import lock_each
from bookie.startup.start_count import StartCount
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.disk.disk import Disk
from bookie.storage.index.index import Index
from bookie.storage.index.key_value import KeyValue
from ledger.errors import FinalError
from ledger.metastore.base import MetadataStore
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.cookie import Cookie, encode_cookie
from ledger.metastore.ledgers import LedgerStore


class DirectoriesKept(FinalError):
    """The list of ledger directories was not changed."""


@dataclass(frozen=True, slots=True)
class Change:
    """The list of ledger directories after a change."""

    directories: tuple[str, ...]
    changed: tuple[str, ...]
    """The directories that were added or dropped; none: the list was so before."""


class DirectoryChange:
    """The changes of one bookie, which must be stopped: the directories are locked.

    Args:
        disk: is closed at the end.
        open_storage: returns the storage with a list of ledger directories, not started.
        key_value: opens the index store at a path.
        boot_id: identifies the start of the machine.

    The methods raise DirectoriesKept if the change is refused, BookieRuns, DirectoryMissing,
    MetadataUnavailable, OSError.
    """

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        store: MetadataStore,
        ledgers: LedgerStore,
        *,
        open_storage: Callable[[BookieConfig, DirectoryMap], BookieStorage],
        key_value: Callable[[str], KeyValue],
        boot_id: str,
    ) -> None:
        self._config = config
        self._disk = disk
        self._store = store
        self._ledgers = ledgers
        self._registry = BookieRegistry(store, config.ledgers_root)
        self._open_storage = open_storage
        self._key_value = key_value
        self._boot_id = boot_id
        self._bookie_id = config.id_of(config.port)
        self._version = -1

    async def expand(self) -> Change:
        """Adds the directories that the settings name behind those that the bookie has."""
        cookie = await self._registered()
        settings, known = self._config.ledger_directories, cookie.ledger_directories
        if settings[: len(known)] != known:
            raise DirectoriesKept(
                f"the settings name the ledger directories {', '.join(settings)}, but bookie "
                f"{self._bookie_id} has {', '.join(known)}. Cure: name those first, in this order, "
                "and new ones behind; to give up one that is lost: `ledgerstream bookie "
                "drop-directory CONFIG DIRECTORY`"
            )
        new = settings[len(known) :]
        old = replace(self._config, ledger_directories=known)
        async with stopped_bookie(old, self._disk):
            await lock_each(new, self._disk)
            if not new:
                await self._complete(cookie)
                return Change(known, ())
            await self._check_cookies(old, cookie)
            for directory in new:
                await self._check_empty(directory)
            layout = await self._layout(old)
            number = await self._check_certain(old, layout)
            ends, held, next_ledger = await self._take_stock(old, layout)
            following = _refused_if(lambda: layout.expanded(new, held, next_ledger, ends))
            for directory in new:
                await self._disk.replace_file(f"{directory}/{START_COUNT_FILE}", b"%d\n" % number)
            await self._make(cookie, layout, following)
            return Change(settings, new)

    async def drop(self, directories: Sequence[str]) -> Change:
        """Removes `directories`, of which nothing is read. Their ledgers are in limbo from the next
        start on."""
        cookie = await self._registered()
        known = cookie.ledger_directories
        left = tuple(one for one in known if one not in directories)
        gone = tuple(one for one in known if one in directories)
        named = tuple(one for one in self._config.ledger_directories if one not in directories)
        if gone and len(gone) < len(set(directories)):
            raise _not_its_own(directories, known)
        if named != left:
            raise DirectoriesKept(
                f"the settings name the ledger directories {', '.join(named) or 'none'} beside "
                f"{', '.join(directories)}, but bookie {self._bookie_id} has {', '.join(left)}. "
                "Cure: give ledger_directories as it was"
            )
        if not left:
            raise DirectoriesKept(
                f"{', '.join(gone)} is all that bookie {self._bookie_id} has. Cure: if it is lost, "
                "start the bookie with all its directories empty and allow_empty_disk = true"
            )
        old = replace(self._config, ledger_directories=known)
        async with stopped_bookie(replace(old, ledger_directories=left), self._disk):
            if not gone:
                if not set(directories) <= await self._complete(cookie):
                    raise _not_its_own(directories, known)
                return Change(known, ())
            await self._check_cookies(replace(old, ledger_directories=left), cookie)
            layout = await self._layout(old, without=gone)
            begin = [await self._begin_of(journal) for journal in old.journal_directories]
            following = _refused_if(lambda: layout.dropped(gone, begin))
            await self._make(cookie, layout, following)
            return Change(left, gone)

    # --- before anything is changed

    async def _registered(self) -> Cookie:
        """Returns the cookie that the cluster has. Raises DirectoriesKept without one, or if the
        journals are others."""
        found = await self._registry.read_cookie(self._bookie_id)
        if found is None:
            raise DirectoriesKept(
                f"the cluster at {self._config.metadata_uri} does not know bookie "
                f"{self._bookie_id}. Cure: a bookie that never ran needs no such command; else "
                "check metadata_uri, bookie_id, host and port"
            )
        cookie, self._version = found
        if cookie.journal_directories != self._config.journal_directories:
            raise DirectoriesKept(
                f"the settings name the journal directories "
                f"{', '.join(self._config.journal_directories)}, but bookie {self._bookie_id} has "
                f"{', '.join(cookie.journal_directories)}, and that list cannot change: the "
                "journal of a ledger is its id modulo their number. Cure: name them as before; "
                "for other journals, run another bookie"
            )
        return cookie

    async def _check_cookies(self, config: BookieConfig, expected: Cookie) -> None:
        for directory in (*config.journal_directories, *config.ledger_directories):
            found = await cookie_of(self._disk, directory)
            if found != expected:
                raise DirectoriesKept(
                    f"{directory} has {'no cookie' if found is None else 'another cookie'}: it is "
                    "not mounted, was emptied, or is another bookie's. Cure: mount the right disk; "
                    "a ledger directory that is lost can be dropped: `ledgerstream bookie "
                    "drop-directory CONFIG DIRECTORY`"
                )

    async def _check_empty(self, directory: str) -> None:
        allowed = {*NO_DATA, DIRECTORIES_FILE, f"{DIRECTORIES_FILE}.tmp"} - {COOKIE_FILE}
        names = await self._disk.list_directory(directory)
        held = [name for name in names if name not in allowed]
        if held:
            raise DirectoriesKept(
                f"{directory} is new to bookie {self._bookie_id}, but holds "
                f"{', '.join(held[:5])}: it is in use elsewhere, or was dropped before. Cure: "
                "empty it; what is in it is of no use to this bookie"
            )

    async def _layout(
        self, config: BookieConfig, *, without: Sequence[str] = ()
    ) -> DirectoryLayout:
        directories = (*config.journal_directories, *config.ledger_directories)
        return in_force(
            config, *await read_layouts(self._disk, [d for d in directories if d not in without])
        )

    async def _check_certain(self, config: BookieConfig, layout: DirectoryLayout) -> int:
        """Checks that nothing is known of lost entries that the next start would have to look for.
        Returns the number of starts."""
        count = StartCount(config, self._disk, self._store, self._bookie_id)
        older = await count.compare()
        if older:
            raise _doubtful(older[0], "it was put back to an older state")
        for directory in (*config.journal_directories, *config.ledger_directories):
            try:
                found = await self._disk.read_file(f"{directory}/{UNSYNCED_FILE}")
            except FileNotFoundError:
                continue
            if (reason := reason_unverified(found, self._boot_id)) is not None:
                raise _doubtful(directory, reason)
        if layout.unsettled:
            raise _doubtful(config.ledger_directories[0], "a ledger directory was dropped")
        return count.number

    async def _take_stock(
        self, config: BookieConfig, layout: DirectoryLayout
    ) -> tuple[list[Mark], list[int], int]:
        """Replays the journals. Returns their ends, the ledgers that the bookie has or remembers,
        and an id from which on the cluster has generated none."""
        storage = self._open_storage(config, map_of(layout))
        try:
            await storage.start()
            for one in storage.directories:
                state = one.integrity.state
                if state is not None and state.stage is IntegrityStage.LEDGERS_UNKNOWN:
                    raise _doubtful(one.directory, state.reason)
            ends = [journal.mark for journal in storage.journals]
        finally:
            storage.close()
        next_ledger = await self._ledgers.next_ledger_id()
        held: list[int] = []
        for directory in config.ledger_directories:
            pairs = self._key_value(f"{directory}/index")
            try:
                index = Index(pairs)
                held += index.every_ledger_id(next_ledger)
                held += [ledger_id for _, ledger_id in index.tombstones()]
            finally:
                pairs.close()
        return ends, held, next_ledger

    async def _begin_of(self, journal: str) -> Mark:
        names = await self._disk.list_directory(journal)
        first = first_of_last_files(one for name in names if (one := file_id_of(name)) is not None)
        return Mark(first, 0) if first else BEGINNING

    # --- the change

    async def _make(
        self, cookie: Cookie, layout: DirectoryLayout, following: DirectoryLayout
    ) -> None:
        following_cookie = replace(cookie, ledger_directories=following.paths)
        directories = (*cookie.journal_directories, *following.paths)
        await write_layouts(self._disk, directories, [layout, following])
        await self._registry.write_cookie(self._bookie_id, following_cookie, self._version)
        for directory in directories:
            await self._write_cookie(directory, following_cookie)

    async def _complete(self, cookie: Cookie) -> set[str]:
        """Completes a change that the cluster knows already, if there is one. Returns the ledger
        directories that the bookie has, and those that it had before."""
        config = replace(self._config, ledger_directories=cookie.ledger_directories)
        directories = (*config.journal_directories, *config.ledger_directories)
        found, damaged = await read_layouts(self._disk, directories)
        layout = in_force(config, found, damaged)
        lacking = [one for one in directories if await cookie_of(self._disk, one) != cookie]
        for directory in lacking:
            if layout not in found[directory]:
                raise DirectoriesKept(
                    f"{directory} has no cookie of bookie {self._bookie_id}, and had no part in "
                    "a change of its list of directories: it is not mounted, was emptied, or is "
                    "another bookie's. Cure: mount the right disk; a ledger directory that is lost "
                    "can be dropped: `ledgerstream bookie drop-directory CONFIG DIRECTORY`"
                )
        for directory in lacking:
            await self._write_cookie(directory, cookie)
        return {path for layouts in found.values() for one in layouts for path in one.paths}

    async def _write_cookie(self, directory: str, cookie: Cookie) -> None:
        await self._disk.replace_file(f"{directory}/{COOKIE_FILE}", encode_cookie(cookie))


def _not_its_own(directories: Sequence[str], known: Sequence[str]) -> DirectoriesKept:
    return DirectoriesKept(
        f"not all of {', '.join(directories)} are ledger directories of this bookie, which has "
        f"{', '.join(known)}. Cure: write them as ledger_directories does"
    )


def _refused_if(change: Callable[[], DirectoryLayout]) -> DirectoryLayout:
    try:
        return change()
    except ValueError as error:
        raise DirectoriesKept(
            f"{error}. Cure: run another bookie, and decommission this one"
        ) from error


def _doubtful(directory: str, reason: str) -> DirectoriesKept:
    return DirectoriesKept(
        f"the bookie may have lost entries that it does not know of yet: {directory}: {reason}. "
        "Cure: start the bookie with the directories it has, stop it when it serves, and repeat "
        "the command"
    )
