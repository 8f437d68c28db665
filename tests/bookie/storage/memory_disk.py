"""A disk in memory for storage tests: what was not synced may be lost, sector by sector.

Every write, sync and change of a directory counts as one step; at `crash_at` the disk stops
with PowerLost, before the step or half way through it. `after_crash` is what is found then.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence

import trio

from bookie.storage.disk.disk import Buffer, cut
from tests.crash_counts import crashed

SECTOR_BYTES = 512


class PowerLost(Exception):
    """The simulated machine stopped. Not an OSError: nothing may handle it."""


class _Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = bytes(data)

    def after_crash(self, rng: random.Random) -> bytes:
        size = rng.choice([len(self.synced), len(self.data)])
        found = bytearray(self.synced[:size].ljust(size, b"\0"))
        for offset in range(0, size, SECTOR_BYTES):
            sector = self.data[offset : offset + SECTOR_BYTES]
            if rng.random() < 0.5 and sector:
                found[offset : offset + len(sector)] = sector
        return bytes(found[:size])


class MemoryDisk:
    def __init__(self, *, rng: random.Random | None = None, crash_at: int | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.crash_at = crash_at
        self.steps = 0
        self.syncs = 0
        self.synced_writes_begun = 0
        self.errors: dict[str, OSError] = {}
        """Operation name -> what it raises from now on."""
        self.full_after: dict[str, int] = {}
        """Operation name -> number of calls after which it fails because the disk is full."""
        self.free_bytes = 1 << 39
        self.is_off = False
        self.names: dict[str, _Inode] = {}
        self.synced_names: dict[str, _Inode] = {}
        self._name_changes: dict[str, list[dict[str, _Inode]]] = {}
        """Per directory, what was in it after each change that is not synced."""
        self.gate: trio.Event | None = None
        """Synced writes wait for it, if set."""
        self.sync_gate: trio.Event | None = None
        """Syncs wait for it, if set."""

    def step(self, operation: str, path: str) -> bool:
        """Counts; raises what is due. True: do half of it, then call `lose_power`."""
        if self.is_off:
            raise PowerLost
        if operation in self.errors:
            raise self.errors[operation]
        if operation in self.full_after:
            self.full_after[operation] -= 1
            if self.full_after[operation] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        self.steps += 1
        if self.crash_at is not None and self.steps >= self.crash_at:
            crashed(path, operation)
            if self.rng.random() < 0.5:
                return True
            self.lose_power()
        return False

    def lose_power(self) -> None:
        self.is_off = True
        raise PowerLost

    def after_crash(self) -> MemoryDisk:
        """A new disk with what survived: any sectors, and a first part of the name changes of
        each directory."""
        names = dict(self.synced_names)
        for directory, changes in sorted(self._name_changes.items()):
            kept = self.rng.choice([_within(directory, self.synced_names), *changes])
            names = {**_outside(directory, names), **kept}
        found = MemoryDisk(rng=self.rng)
        found.names = {
            name: _Inode(inode.after_crash(self.rng)) for name, inode in sorted(names.items())
        }
        found.synced_names = dict(found.names)
        return found

    def changed_names(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        changes = self._name_changes.setdefault(directory, [])
        changes.append(_within(directory, self.names))

    async def open(
        self, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> MemoryFile:
        await trio.lowlevel.checkpoint()
        if is_new:
            if path in self.names:
                raise FileExistsError(path)
            is_half = self.step("open", path)
            self.names[path] = _Inode()
            self.changed_names(path)
            if is_half:
                self.lose_power()
        elif path not in self.names:
            raise FileNotFoundError(path)
        return MemoryFile(self, self.names[path], path)

    async def read_file(self, path: str) -> bytes:
        await trio.lowlevel.checkpoint()
        if path not in self.names:
            raise FileNotFoundError(path)
        return bytes(self.names[path].data)

    async def replace_file(self, path: str, data: bytes) -> None:
        """In the steps of the real one, each a place to crash at."""
        temporary = f"{path}.tmp"
        self.names.pop(temporary, None)  # what an earlier crash left is overwritten
        file = await self.open(temporary, is_new=True)
        await file.write_at(0, [data])
        await file.sync()
        await self.rename(temporary, path)
        await self.sync_directory(path.rpartition("/")[0])

    async def list_directory(self, path: str) -> list[str]:
        await trio.lowlevel.checkpoint()
        return sorted(name.removeprefix(path + "/") for name in self.names)

    async def make_directory(self, path: str) -> None:
        await trio.lowlevel.checkpoint()

    async def rename(self, old: str, new: str) -> None:
        await trio.lowlevel.checkpoint()
        is_half = self.step("rename", old)
        assert old.rpartition("/")[0] == new.rpartition("/")[0], f"{old} to another directory"
        self.names[new] = self.names.pop(old)
        self.changed_names(new)
        if is_half:
            self.lose_power()

    async def remove(self, path: str) -> None:
        await trio.lowlevel.checkpoint()
        if path not in self.names:
            raise FileNotFoundError(path)
        is_half = self.step("remove", path)
        del self.names[path]
        self.changed_names(path)
        if is_half:
            self.lose_power()

    async def sync_directory(self, path: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.step("sync_directory", path):
            self.lose_power()
        kept = _outside(path, self.synced_names)
        self.synced_names = {**kept, **_within(path, self.names)}
        self._name_changes.pop(path, None)

    async def space(self, path: str) -> tuple[int, int]:
        await trio.lowlevel.checkpoint()
        return 1 << 40, self.free_bytes

    async def device(self, path: str) -> int:
        await trio.lowlevel.checkpoint()
        return 1  # one file system, whatever the path

    async def lock(self, path: str) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        pass


def _within(directory: str, names: dict[str, _Inode]) -> dict[str, _Inode]:
    return {name: one for name, one in names.items() if name.rpartition("/")[0] == directory}


def _outside(directory: str, names: dict[str, _Inode]) -> dict[str, _Inode]:
    return {name: one for name, one in names.items() if name.rpartition("/")[0] != directory}


class MemoryFile:
    def __init__(self, disk: MemoryDisk, inode: _Inode, path: str = "") -> None:
        self.disk = disk
        self.inode = inode
        self.path = path

    @property
    def size(self) -> int:
        return len(self.inode.data)

    def _put(self, offset: int, views: Sequence[Buffer]) -> None:
        data = b"".join(views)
        if len(self.inode.data) < offset + len(data):
            self.inode.data.extend(bytes(offset + len(data) - len(self.inode.data)))
        self.inode.data[offset : offset + len(data)] = data

    async def write_at(
        self,
        offset: int,
        views: Sequence[Buffer],
        *,
        drops_cache: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        await trio.lowlevel.checkpoint()
        is_half = self.disk.step("write_at", self.path)
        self._put(offset, views)
        if is_half:
            self.disk.lose_power()
        if then is not None:
            then()

    async def write_at_synced(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        self.disk.synced_writes_begun += 1
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
            if self.disk.gate is not None:
                await self.disk.gate.wait()
        return self.write_synced_now(offset, views, then=then)

    def write_synced_now(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        is_half = self.disk.step("write_at_synced", self.path)
        self._put(offset, views)
        if is_half:
            self.disk.lose_power()
        self.disk.syncs += 1
        self.inode.synced = bytes(self.inode.data)
        if then is not None:
            then()
        return 0.0

    def write_now(self, offset: int, data: Buffer) -> None:
        self._put(offset, [data])

    async def sync(self, *, drops_cache: bool = False) -> None:
        data = bytes(self.inode.data)  # what is written from now on, this sync does not promise
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
            if self.disk.sync_gate is not None:
                await self.disk.sync_gate.wait()
            if self.disk.step("sync", self.path):
                self.disk.lose_power()
            self.disk.syncs += 1
            self.inode.synced = data

    def read_nowait(
        self, offset: int, size: int, *, drops_cache: bool = False
    ) -> bytes | bytearray | None:
        return bytes(self.inode.data[offset : offset + size])

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        await trio.lowlevel.checkpoint()
        return bytes(self.inode.data[offset : offset + size])

    async def read_parts(
        self, offset: int, sizes: Sequence[int], *, drops_cache: bool = False
    ) -> list[bytes]:
        return cut(await self.read(offset, sum(sizes), drops_cache=drops_cache), sizes)

    async def allocate(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.disk.step("allocate", self.path):
            self.disk.lose_power()
        if size > self.size:
            self.inode.data.extend(bytes(size - self.size))

    async def truncate(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.disk.step("truncate", self.path):
            self.disk.lose_power()
        del self.inode.data[size:]

    def close(self) -> None:
        pass
