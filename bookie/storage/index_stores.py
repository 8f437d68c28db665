"""Index stores as directories of RocksDB, for tools that put one in another's place."""

from __future__ import annotations

import os
import shutil

import trio

from bookie.storage.disk.disk import Disk
from bookie.storage.index.rocksdb import RocksKeyValue
from ledger.errors import BookieIoError


class RocksStores:
    """`bookie.storage.check.index_rebuild.IndexStores` on the file system."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: str, *, is_read_only: bool = False) -> RocksKeyValue:
        """Makes it if it is not there, unless `is_read_only`. Raises BookieIoError."""
        if is_read_only and not os.path.isdir(path):
            raise BookieIoError(f"index {path} is not there")
        return RocksKeyValue(path, is_read_only=is_read_only)

    def open_to_read(self, path: str) -> RocksKeyValue:
        """Changes nothing. Raises BookieIoError."""
        return self.open(path, is_read_only=True)

    async def names(self, directory: str) -> list[str]:
        return await self._disk.list_directory(directory)

    async def remove(self, path: str) -> None:
        """With all that is in it; no error if it is not there."""

        def do() -> None:
            if os.path.isdir(path):
                shutil.rmtree(path)

        await trio.to_thread.run_sync(do)

    async def rename(self, old: str, new: str) -> None:
        """Durably."""
        await self._disk.rename(old, new)
        await self._disk.sync_directory(os.path.dirname(new) or ".")
