"""Notices that directories of a bookie were put back to an older state.

Every directory and the metadata store hold a number that grows with each start and each stop, and
while the bookie stores entries. The directories get it first, so a directory whose number is lower
than that of the metadata is older than the metadata: entries that the bookie acknowledged since are
gone. They are treated as after a loss of power (`bookie.startup.power_loss`): as unknown until they
were compared with the other copies, never as absent.
"""

from __future__ import annotations

import errno
import logging

from bookie.config import BookieConfig
from bookie.startup.cookies import (
    EMPTIED,
    PUT_BACK,
    START_COUNT_FILE,
    UNSYNCED_FILE,
    start_number,
)
from bookie.storage.disk.disk import Disk
from ledger.errors import MetadataCorrupt, NodeExists, NoSuchNode
from ledger.metastore.base import MetadataStore

_log = logging.getLogger(__name__)

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def start_count_path(bookie_id: str) -> str:
    """Returns the path of the number of one bookie."""
    return f"/ledgerstream/bookies/{bookie_id}"


class StartCount:
    """The number of one bookie. Its methods raise OSError and MetadataUnavailable."""

    def __init__(
        self, config: BookieConfig, disk: Disk, store: MetadataStore, bookie_id: str
    ) -> None:
        self._config = config
        self._disk = disk
        self._store = store
        self._path = start_count_path(bookie_id)
        self._directories = list(
            dict.fromkeys((*config.journal_directories, *config.ledger_directories))
        )
        self.number = 0

    async def check(self) -> list[str]:
        """Compares the directories with the metadata, records it in those that were put back, and
        advances the number. Returns those that were put back."""
        older = await self.compare()
        if older:
            _log.error(
                "directories were put back to an older state directories=%s: entries may be "
                "missing that the bookie acknowledged; their ledgers are unverified until they "
                "were compared with the other copies",
                ",".join(older),
            )
            for directory in older:
                await self._record(f"{directory}/{UNSYNCED_FILE}")
        await self.advance()
        return older

    async def compare(self) -> list[str]:
        """Returns the directories that were put back to an older state; changes nothing. Afterwards
        `number` is that of the newest, or of the metadata."""
        # One whose number is damaged counts as put back.
        counted = {each: await start_number(self._disk, each) for each in self._directories}
        registered = await self._of_metadata()
        self.number = max(registered, *counted.values())
        return [each for each, number in counted.items() if number < registered]

    async def advance(self) -> None:
        """Makes every copy of the directories and of the metadata that was made before older."""
        number = self.number + 1
        try:
            for directory in self._directories:
                await self._disk.replace_file(f"{directory}/{START_COUNT_FILE}", b"%d\n" % number)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            # A bookie must start with full disks, too; the number in some of them does no harm.
            _log.warning("number of the start not advanced cause=%s", error)
            return
        self.number = number
        data = b"%d" % number
        try:
            await self._store.put(self._path, data)
        except NoSuchNode:
            try:
                await self._store.create(self._path, data)
            except NodeExists:
                await self._store.put(self._path, data)

    async def _record(self, path: str) -> None:
        try:
            if await self._disk.read_file(path) == EMPTIED:
                return  # it says already why entries may be missing
        except FileNotFoundError:
            pass
        await self._disk.replace_file(path, PUT_BACK)

    async def _of_metadata(self) -> int:
        try:
            node = await self._store.get(self._path)
        except NoSuchNode:
            return 0
        try:
            return int(node.data)
        except ValueError:
            raise MetadataCorrupt(f"{self._path} holds {node.data[:40]!r}, not a number") from None
