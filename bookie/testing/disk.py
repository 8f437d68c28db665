"""Simulated disks: what was not synced may be lost, kept or torn when power fails.

`SimDisk` is the device and outlives its users; `mount` gives each incarnation of a process an
interface of its own, which after `crash` never changes the device again. A sector of 512 bytes is
written whole or not at all; names of files are as durable as their directory.
"""

from __future__ import annotations

import copy
import enum
import errno
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from bookie.testing.file import SimFile
from bookie.testing.inode import Inode, parent_of
from bookie.testing.key_value import KeyValueStates, SimKeyValue
from bookie.testing.scheduler import Simulation
from bookie.testing.volumes import DiskOptions as DiskOptions
from bookie.testing.volumes import Volumes

ValueT = TypeVar("ValueT")


DiskBackup = tuple[
    dict[str, Inode],
    dict[str, Inode],
    dict[str, list[dict[str, Inode | None]]],
    dict[str, None],
    dict[str, KeyValueStates],
]
"""The files of a disk at one moment; see `SimDisk.backup`."""


class CrashKind(enum.Enum):
    """What a crash leaves of data that was written but not synced."""

    PROCESS_KILLED = "process killed"  # the operating system lives: all finished writes are kept
    POWER_LOST_ALL = "power lost, nothing unsynced kept"
    POWER_LOST_TORN = "power lost, each unsynced sector kept or not"


class SimDisk:
    """The disks of one machine: one file system, or several after `separate`. All state is in
    memory; all chance comes from the seed."""

    def __init__(
        self, simulation: Simulation, name: str, options: DiskOptions | None = None
    ) -> None:
        self.simulation = simulation
        self.name = name
        self.volumes = Volumes(options or DiskOptions())
        self.chance = simulation.chance(f"disk/{name}")
        self.syncs = 0
        self.power_losses = 0
        self.on_operation: Callable[[str, str], None] | None = None
        """Called with kind and path in the middle of every operation, before it takes effect: a
        point at which the process may die."""
        self.inodes: dict[str, Inode] = {}
        """Names as a running process sees them."""
        self.durable_inodes: dict[str, Inode] = {}
        """Names as they would be after a loss of power that keeps nothing else."""
        self.pending_names: dict[str, list[dict[str, Inode | None]]] = {}
        """Per directory, changes of names not yet synced, oldest first; None is a removal."""
        self.directories: dict[str, None] = {"": None, "/": None}
        self.key_values: dict[str, KeyValueStates] = {}
        self._mounted: MountedDisk | None = None

    @property
    def options(self) -> DiskOptions:
        """The options of the volume for all paths that are on no other."""
        return self.volumes.options[""]

    @options.setter
    def options(self, options: DiskOptions) -> None:
        self.volumes.options[""] = options

    def separate(self, directories: Sequence[str]) -> None:
        """Makes each of them a disk of its own, with its own options."""
        assert not self.inodes, f"disk {self.name} is in use and cannot be separated"
        self.volumes.separate(directories)

    def mount(self) -> MountedDisk:
        """Returns the interface for a new incarnation; an earlier one is frozen."""
        self.freeze()
        self._mounted = MountedDisk(self)
        return self._mounted

    def freeze(self) -> None:
        """From now on the mounted interface, if any, changes nothing and every call on it fails."""
        if self._mounted is not None:
            self._mounted.is_frozen = True
            self._mounted = None

    def crash(self, kind: CrashKind) -> None:
        """Freezes the interface and settles what is left of everything that was not synced."""
        self.freeze()
        self.simulation.trace("disk crash", self.name, kind.value)
        chance = self.chance
        inodes = dict.fromkeys([*self.inodes.values(), *self.durable_inodes.values()])
        if kind is CrashKind.PROCESS_KILLED:
            for inode in inodes:
                inode.settle_kill(chance)
        else:
            self.power_losses += 1
            self._settle_names(kind, chance)
            for inode in inodes:
                inode.settle_power_loss(chance, is_torn=kind is CrashKind.POWER_LOST_TORN)
        for states in self.key_values.values():
            states.settle(0 if kind is CrashKind.POWER_LOST_ALL else None, chance)

    def wipe(self, directory: str = "") -> None:
        """Replaces the disk by an empty one; or only what was mounted at `directory`. Freeze or
        crash first."""
        assert self._mounted is None, f"disk {self.name} is in use and cannot be wiped"
        self.simulation.trace("disk wipe", self.name, directory)
        below = f"{directory}/" if directory else ""
        self.inodes = _without(self.inodes, below)
        self.durable_inodes = _without(self.durable_inodes, below)
        self.key_values = _without(self.key_values, below)
        self.pending_names = {
            path: changes
            for path, changes in self.pending_names.items()
            if not f"{path}/".startswith(below)
        }
        self.directories = {"": None, "/": None, **_without(self.directories, below)}

    def backup(self) -> DiskBackup:
        """Returns a copy of all files, of a disk that is not in use."""
        assert self._mounted is None, f"disk {self.name} is in use and cannot be copied"
        return copy.deepcopy(
            (self.inodes, self.durable_inodes, self.pending_names, self.directories,
             self.key_values)
        )  # fmt: skip

    def put_back(self, backup: DiskBackup) -> None:
        """Replaces all files by those of a copy. Freeze or crash first."""
        assert self._mounted is None, f"disk {self.name} is in use and cannot be replaced"
        self.simulation.trace("disk put back", self.name)
        (
            self.inodes, self.durable_inodes, self.pending_names, self.directories,
            self.key_values,
        ) = copy.deepcopy(backup)  # fmt: skip

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Flips one bit of a file, in memory and on the platter."""
        self.inodes[path].flip_bit(offset, bit)
        self.simulation.trace("disk rot", self.name, path, offset)

    @property
    def used_bytes(self) -> int:
        return sum(inode.size for inode in self.inodes.values())

    def used_bytes_of(self, volume: str) -> int:
        """Returns the used bytes of one of `volumes`."""
        of = self.volumes.of
        return sum(inode.size for path, inode in self.inodes.items() if of(path) == volume)

    def change_names(self, change: dict[str, Inode | None]) -> None:
        """Applies one atomic change of names in one directory; durable with the directory."""
        for path, inode in change.items():
            if inode is None:
                self.inodes.pop(path, None)
            else:
                self.inodes[path] = inode
        self.pending_names.setdefault(parent_of(next(iter(change))), []).append(change)

    def settle_directory(self, directory: str, count: int | None = None) -> None:
        """Makes the first `count` pending changes (None: all) of `directory` durable."""
        pending = self.pending_names.get(directory, [])
        for change in pending[:count]:
            for path, inode in change.items():
                if inode is None:
                    self.durable_inodes.pop(path, None)
                else:
                    self.durable_inodes[path] = inode
        self.pending_names[directory] = pending[count:] if count is not None else []

    def _settle_names(self, kind: CrashKind, chance: random.Random) -> None:
        for directory in sorted(self.pending_names):
            pending = len(self.pending_names[directory])
            is_torn = kind is CrashKind.POWER_LOST_TORN
            self.settle_directory(directory, chance.randint(0, pending) if is_torn else 0)
        self.pending_names = {}
        self.inodes = dict(self.durable_inodes)


def _without(paths: dict[str, ValueT], below: str) -> dict[str, ValueT]:
    return {path: value for path, value in paths.items() if not path.startswith(below)}


class MountedDisk:
    """A disk as one incarnation of a process sees it; implements `Disk`."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.options = disk.options
        self.is_frozen = False
        self._locks: dict[str, None] = {}

    async def open(
        self, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> SimFile:
        await self.operate("open", path)
        inode = self.disk.inodes.get(path)
        if is_new:
            if inode is not None:
                raise FileExistsError(errno.EEXIST, "file exists", path)
            self._check_directory(path)
            inode = Inode()
            self.disk.change_names({path: inode})
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimFile(self, path, inode)

    async def read_file(self, path: str) -> bytes:
        await self.operate("read", path)
        inode = self.disk.inodes.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return bytes(inode.data)

    async def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        if temporary in self.disk.inodes:
            await self.remove(temporary)
        file = await self.open(temporary, is_new=True)
        await file.write_at_synced(0, [data])
        file.close()
        await self.rename(temporary, path)
        await self.sync_directory(parent_of(path))

    async def list_directory(self, path: str) -> list[str]:
        await self.operate("list", path)
        directory = path.rstrip("/")
        names = [name for name in self.disk.inodes if parent_of(name) == directory]
        below = [name for name in self.disk.directories if name and parent_of(name) == directory]
        return sorted({name.rpartition("/")[2] for name in [*names, *below]} - {""})

    async def make_directory(self, path: str) -> None:
        await self.operate("sync", path)
        parts = path.rstrip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self.disk.directories["/".join(parts[:depth])] = None

    async def rename(self, old: str, new: str) -> None:
        await self.operate("rename", old)
        inode = self.disk.inodes.get(old)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        if parent_of(old) != parent_of(new):
            raise OSError(errno.EXDEV, "the simulated disk renames within a directory only", old)
        self.disk.change_names({old: None, new: inode})

    async def remove(self, path: str) -> None:
        await self.operate("remove", path)
        if path not in self.disk.inodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.disk.change_names({path: None})

    async def sync_directory(self, path: str) -> None:
        directory = path.rstrip("/")
        count = len(self.disk.pending_names.get(directory, []))
        self.count_sync()
        await self.operate("sync", path)
        self.disk.settle_directory(directory, count)

    async def space(self, path: str) -> tuple[int, int]:
        await self.operate("list", path)
        volume, capacity = self.disk.volumes.of(path), self.disk.volumes.at(path).capacity_bytes
        return capacity, max(0, capacity - self.disk.used_bytes_of(volume))

    async def device(self, path: str) -> int:
        await trio.lowlevel.checkpoint()
        return self.disk.volumes.number_of(path)

    async def lock(self, path: str) -> None:
        # One interface per device is live at a time, so only this one can hold a lock.
        await self.operate("open", path)
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self._locks[path] = None

    def close(self) -> None:
        self._locks = {}

    def open_key_value(self, path: str) -> SimKeyValue:
        """Opens the key-value store at `path`, which is empty if it did not exist."""
        self.check()
        return SimKeyValue(self, path, self.disk.key_values.setdefault(path, KeyValueStates()))

    def check(self) -> None:
        """Raises OSError if the process of this interface is dead."""
        if self.is_frozen:
            raise OSError(errno.ESHUTDOWN, f"the process using disk {self.disk.name} is dead")

    def check_space(self, path: str, growth: int) -> None:
        if growth <= 0:
            return
        volume = self.disk.volumes.of(path)
        used = self.disk.used_bytes_of(volume)
        if used + growth > self.disk.volumes.at(path).capacity_bytes:
            raise OSError(errno.ENOSPC, f"disk {self.disk.name}{volume} is full")

    def is_cached(self, path: str) -> bool:
        """Returns whether a read of `path` finds its bytes in memory, by chance."""
        return self.disk.chance.random() < self.disk.volumes.at(path).cached_read_probability

    def count_sync(self) -> None:
        """Notes one sync of a file or a directory."""
        self.disk.syncs += 1

    async def operate(self, kind: str, path: str) -> None:
        """Takes the time of one operation, and fails it if chance or death decides so.

        Not cancellable, as a call on a thread is not; the effect comes after it returned.
        """
        self.check()
        await self.disk.simulation.sleep_shielded(self._draw_s(kind, path))
        self._operate(kind, path)

    def operate_now(self, kind: str, path: str) -> float:
        """Does as `operate`, in no time; returns the seconds that it would have taken."""
        seconds = self._draw_s(kind, path)
        self._operate(kind, path)
        return seconds

    def _operate(self, kind: str, path: str) -> None:
        self.check()
        options, chance = self.disk.volumes.at(path), self.disk.chance
        if self.disk.on_operation is not None:
            self.disk.on_operation(kind, path)
            self.check()
        probability = {
            "read": options.read_error_probability,
            "write": options.write_error_probability,
            "sync": options.sync_error_probability,
        }.get(kind, 0.0)
        if probability and chance.random() < probability:
            self.disk.simulation.trace("disk error", self.disk.name, kind, path)
            raise OSError(errno.EIO, f"simulated {kind} error", path)
        self.disk.simulation.trace("disk", self.disk.name, kind, path)

    def _draw_s(self, kind: str, path: str) -> float:
        slow_factor = self.disk.volumes.at(path).slow_factor
        return self.disk.chance.uniform(0, self._time_max_s(kind)) * slow_factor

    def _time_max_s(self, kind: str) -> float:
        if kind == "sync":
            return self.options.sync_max_s
        is_read = kind in ("open", "read", "list")
        return self.options.read_max_s if is_read else self.options.write_max_s

    def _check_directory(self, path: str) -> None:
        if parent_of(path) not in self.disk.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", parent_of(path))
