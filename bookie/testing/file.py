"""An open file of the simulated disk: its operations take time, may fail, and are points to die
at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from bookie.storage.disk.disk import Buffer, cut
from bookie.testing.inode import Inode, Mount, PendingWrite


class SimFile:
    """An open file of one incarnation; implements `File`."""

    def __init__(self, mount: Mount, path: str, inode: Inode) -> None:
        self._mount = mount
        self._path = path
        self._inode = inode
        self._is_closed = False

    @property
    def size(self) -> int:
        return self._inode.size

    async def write_at(
        self,
        offset: int,
        views: Sequence[Buffer],
        *,
        drops_cache: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        data = self._begin_write(offset, views)
        pending = PendingWrite(offset, data)
        self._inode.in_flight.append(pending)
        try:
            await self._mount.operate("write", self._path)
        finally:
            if pending in self._inode.in_flight:
                self._inode.in_flight.remove(pending)
        self._inode.write(offset, data)
        if then is not None:
            then()

    async def write_at_synced(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        began = trio.current_time()
        await self.write_at(offset, views)
        await self.sync()
        if then is not None:
            then()
        return trio.current_time() - began

    def write_synced_now(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        data = self._begin_write(offset, views)
        seconds = self._mount.operate_now("write", self._path)
        self._inode.write(offset, data)
        dirty = self._inode.begin_sync()
        self._mount.count_sync()
        try:
            seconds += self._mount.operate_now("sync", self._path)
        except OSError:
            if not self._mount.is_frozen:
                self._inode.fail_sync(dirty)
            raise
        self._inode.finish_sync(dirty)
        if then is not None:
            then()
        return seconds  # virtual time stands still meanwhile: what is late is the next write

    def write_now(self, offset: int, data: Buffer) -> None:
        self._inode.write(offset, self._begin_write(offset, [data]))

    async def sync(self, *, drops_cache: bool = False) -> None:
        self._check()
        dirty = self._inode.begin_sync()
        self._mount.count_sync()
        try:
            await self._mount.operate("sync", self._path)
        except OSError:
            # As Linux does: the pages count as clean, and what became of them is unknown.
            if not self._mount.is_frozen:
                self._inode.fail_sync(dirty)
            raise
        self._inode.finish_sync(dirty)

    def read_nowait(
        self, offset: int, size: int, *, drops_cache: bool = False
    ) -> bytes | bytearray | None:
        self._check()
        if not self._mount.is_cached(self._path):
            return None
        return self._inode.read(offset, size)

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        self._check()
        await self._mount.operate("read", self._path)
        return self._inode.read(offset, size)

    async def read_parts(
        self, offset: int, sizes: Sequence[int], *, drops_cache: bool = False
    ) -> list[bytes]:
        return cut(await self.read(offset, sum(sizes), drops_cache=drops_cache), sizes)

    async def allocate(self, size: int) -> None:
        self._check()
        self._mount.check_space(self._path, size - self._inode.size)
        await self._mount.operate("write", self._path)
        self._inode.extend(size)

    async def truncate(self, size: int) -> None:
        self._check()
        await self._mount.operate("write", self._path)
        self._inode.truncate(size)

    def close(self) -> None:
        self._is_closed = True

    def _begin_write(self, offset: int, views: Sequence[Buffer]) -> bytes:
        self._check()
        data = b"".join(views)
        self._mount.check_space(self._path, offset + len(data) - self._inode.size)
        return data

    def _check(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self._path} is closed")
        self._mount.check()
