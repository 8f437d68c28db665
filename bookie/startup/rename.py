"""Gives a stopped bookie another id, with the disks that it has: its address changed.

The order makes each step repeatable, and keeps the bookie from starting in between, under either
id: while metadata names it by both, it would take the copies of the other name for unneeded.

1. The node `/ledgerstream/renames/<new>` records which bookie gets that id.
2. The cookies of the directories name the new id, and the cluster's cookie the old one.
3. The metadata of each ledger that names the old id is changed by compare-and-set, until a pass
   over all ledgers finds none; then marks, and the table of locations.
4. One transaction moves the cluster's cookie, the count of starts and the decommission, and
   deletes the node of step 1.

What an interruption leaves is continued by the same command. Which ledgers are changed is decided
in `bookie.core.renaming`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from bookie.config import BookieConfig
from bookie.startup.cookies import COOKIE_FILE, cookie_of, differences
from bookie.startup.offline import stopped_bookie
from bookie.startup.rename_ledgers import LedgerRename, OnProgress, RenameRefused
from bookie.startup.start_count import start_count_path
from bookie.storage.disk.disk import Disk
from ledger.core.bounded_json import parse_json
from ledger.errors import MetadataConflict, MetadataCorrupt, NodeExists, NoSuchNode
from ledger.metastore.base import Change, Create, Delete, MetadataStore, Put
from ledger.metastore.bookies import BookieRegistry, empty_start_path
from ledger.metastore.cookie import Cookie, encode_cookie
from ledger.metastore.decommissions import Decommissions
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.paths import check_bookie_id
from ledger.metastore.underreplication import UnderreplicationStore

PATH: Final = "/ledgerstream/renames"
_TRIES_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """What was done. `was_renamed`: the bookie had the new id before, nothing was changed."""

    old: str
    new: str
    ledgers: int = 0
    """Ledgers whose metadata was changed; of a dry run, those that name the old id."""
    was_renamed: bool = False


def path_of(new: str) -> str:
    """Returns the path of the record of a rename in progress."""
    return f"{PATH}/{check_bookie_id(new)}"


class BookieRename:
    """The rename of one bookie, which must be stopped: its directories are locked.

    Args:
        config: its settings, with the new id.
        disk: is closed at the end.
        includes_open: changes also open ledgers whose writers or recovering clients cannot be
            known to be gone; they are fenced.
        on_progress: gets what is counted, how many are done, and of how many.
    """

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        store: MetadataStore,
        ledgers: LedgerStore,
        marks: UnderreplicationStore,
        *,
        includes_open: bool = False,
        on_progress: OnProgress = lambda _what, _done, _total: None,
    ) -> None:
        self._config = config
        self._disk = disk
        self._store = store
        self._ledgers = ledgers
        self._marks = marks
        self._registry = BookieRegistry(store, config.ledgers_root)
        self._decommissions = Decommissions(store)
        self._includes_open = includes_open
        self._on_progress = on_progress
        self._directories = tuple(
            dict.fromkeys((*config.journal_directories, *config.ledger_directories))
        )
        self._old = self._new = ""
        self._has_begun = False

    async def run(self, old: str, new: str, *, is_dry: bool = False) -> Renamed:
        """Renames the bookie, or completes that.

        Raises RenameRefused, and has changed nothing if no rename had begun before; BookieRuns,
        DirectoryMissing, CookieMismatch, MetadataCorrupt, MetadataUnavailable, OSError.
        """
        self._old, self._new = check_bookie_id(old), check_bookie_id(new)
        self._check_settings()
        async with stopped_bookie(self._config, self._disk):
            await self._check_registered()
            cookie = await self._check_cookies()
            if cookie is None:
                return Renamed(old=old, new=new, was_renamed=True)
            await self._registry.locations.read()  # a damaged table is found before any change
            await self._check_decommissions()
            ledgers = LedgerRename(
                self._ledgers,
                self._marks,
                old,
                new,
                has_begun=self._has_begun,
                includes_open=self._includes_open,
                on_progress=self._on_progress,
            )
            named = await ledgers.find()
            if is_dry:
                return Renamed(old=old, new=new, ledgers=len(named))
            await self._begin(cookie)
            changed = await ledgers.change(named)
            await self._registry.locations.rename(old, new)
            await self._commit(cookie)
            return Renamed(old=old, new=new, ledgers=changed)

    # --- before anything is changed

    def _check_settings(self) -> None:
        wanted = self._config.id_of(self._config.port)
        if self._old == self._new:
            raise RenameRefused(f"{self._old} is named twice. Cure: give the old and the new id")
        if wanted != self._new:
            raise RenameRefused(
                f"the settings are those of bookie {wanted}, not of {self._new}. Cure: give the "
                "bookie its new address (host, port, advertised_host) or bookie_id in its "
                "settings first"
            )

    async def _check_registered(self) -> None:
        for bookie in (self._old, self._new):
            if await self._registry.info(bookie) is not None:
                raise RenameRefused(
                    f"bookie {bookie} is registered: it is running, or has ended only now. Cure: "
                    "stop it, and wait until `ledgerstream bookie list` shows it as down"
                )

    async def _check_cookies(self) -> Cookie | None:
        """Returns the cluster's cookie of the old id; None if the bookie was renamed before."""
        before = await self._registry.read_cookie(self._old)
        after = await self._registry.read_cookie(self._new)
        instance_id = await self._registry.instance_id()
        on_disk = [await self._cookie_on_disk(each, instance_id) for each in self._directories]
        if before is None and after is not None and set(on_disk) == {after[0]}:
            return None
        self._has_begun = await self._read_record()
        if before is None and not self._has_begun:
            raise RenameRefused(
                f"the cluster at {self._config.metadata_uri} does not know bookie {self._old}. "
                "Cure: `ledgerstream bookie list` shows those that it knows; a bookie that never "
                "ran needs no such command"
            )
        if after is not None:
            raise RenameRefused(
                f"the cluster knows a bookie {self._new} already. Cure: give this one another id; "
                f"if {self._new} is gone, decommission it first"
            )
        # A decommission that has found no ledger of the old id any more has deleted its cookie.
        cookie = before[0] if before else replace(on_disk[0], bookie_id=self._old)
        fitting = {cookie, replace(cookie, bookie_id=self._new)} if self._has_begun else {cookie}
        for directory, found in zip(self._directories, on_disk, strict=True):
            if found not in fitting:
                raise RenameRefused(
                    f"{directory} is not a directory of bookie {self._old}: "
                    f"{differences(found, cookie)}. Cure: mount the right disks, and name the "
                    "directories as before: only the id may change"
                )
        expected = replace(
            cookie,
            journal_directories=tuple(self._config.journal_directories),
            ledger_directories=tuple(self._config.ledger_directories),
        )
        if cookie != expected:
            raise RenameRefused(
                f"the settings name other directories than bookie {self._old} has: "
                f"{differences(expected, cookie)}. Cure: name them as before; change them when the "
                "bookie has its new id"
            )
        return cookie

    async def _cookie_on_disk(self, directory: str, instance_id: str) -> Cookie:
        found = await cookie_of(self._disk, directory)
        if found is None:
            raise RenameRefused(
                f"{directory} has no cookie: it is not mounted, was emptied, or the bookie never "
                "ran with these settings. Cure: mount the right disk"
            )
        if found.instance_id != instance_id:
            raise RenameRefused(
                f"{directory} belongs to cluster {found.instance_id or 'without an id'}, and at "
                f"{self._config.metadata_uri} is cluster {instance_id}. Cure: point metadata_uri "
                "at the cluster that the disks belong to"
            )
        return found

    async def _check_decommissions(self) -> None:
        await self._decommissions.renaming(self._old, self._new)  # raises for a damaged node
        if self._new in await self._decommissions.names():
            raise RenameRefused(
                f"there is a decommission of a bookie {self._new}, which would begin to empty this "
                f"one. Cure: `ledgerstream bookie decommission {self._new} --cancel`"
            )

    async def _read_record(self) -> bool:
        """Returns whether this rename has begun. Raises RenameRefused if another one has."""
        path = path_of(self._new)
        try:
            node = await self._store.get(path)
        except NoSuchNode:
            return False
        try:
            document = parse_json(node.data)
            version, old = document["version"], document["old"]
        except (ValueError, TypeError, KeyError):
            version, old = None, None
        if version != 1 or not isinstance(old, str):
            raise MetadataCorrupt(
                f"{path} holds {node.data[:100]!r}, which is no record of a rename. Cure: if none "
                "was begun, delete the node"
            )
        if old != self._old:
            raise RenameRefused(
                f"the rename of bookie {old} to {self._new} was begun. Cure: complete it with "
                f"`ledgerstream bookie rename {old} {self._new}`; or take another id"
            )
        return True

    # --- the change

    async def _begin(self, cookie: Cookie) -> None:
        """Records the rename, and keeps the bookie from starting until it is complete."""
        if not self._has_begun:
            data = json.dumps({"version": 1, "old": self._old}).encode()
            try:
                await self._store.create(path_of(self._new), data)
            except NodeExists:
                await self._read_record()  # refuses another one, begun meanwhile
        data = encode_cookie(replace(cookie, bookie_id=self._new))
        for directory in self._directories:
            await self._disk.replace_file(f"{directory}/{COOKIE_FILE}", data)
            await self._disk.sync_directory(directory)

    async def _commit(self, cookie: Cookie) -> None:
        """Makes the change valid: from now on the bookie can start with its new id."""
        await self._check_registered()
        for _ in range(_TRIES_MAX):
            found = await self._registry.read_cookie(self._old)
            if found is not None and found[0] != cookie:
                raise RenameRefused(
                    f"the cookie of bookie {self._old} was changed meanwhile. Cure: end what "
                    "changes it, and repeat the command"
                )
            new_cookie = encode_cookie(replace(cookie, bookie_id=self._new))
            changes: list[Change] = [
                *([Delete(self._registry.cookie_path(self._old), found[1])] if found else []),
                Create(self._registry.cookie_path(self._new), new_cookie),
                *await self._moved(start_count_path),
                *await self._moved(empty_start_path),
                *await self._decommissions.renaming(self._old, self._new),
                Delete(path_of(self._new)),
            ]
            try:
                await self._store.transaction(changes)
            except (MetadataConflict, NodeExists, NoSuchNode):
                continue
            return
        raise MetadataConflict(
            f"bookie {self._old}: others changed its nodes first {_TRIES_MAX} times"
        )

    async def _moved(self, path: Callable[[str], str]) -> list[Change]:
        """Returns the changes that give the new id what the old one has at a path, and nothing of
        an earlier bookie with the new id."""
        old, new = path(self._old), path(self._new)
        before, after = await self._get(old), await self._get(new)
        if before is None:
            return [] if after is None else [Delete(new, after[1])]
        placed = Create(new, before[0]) if after is None else Put(new, before[0], after[1])
        return [Delete(old, before[1]), placed]

    async def _get(self, path: str) -> tuple[bytes, int] | None:
        try:
            node = await self._store.get(path)
        except NoSuchNode:
            return None
        return node.data, node.version
