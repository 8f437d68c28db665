"""Monitors the free space of a bookie's disks, decides which adds are taken, keeps the reserves.

The decisions are in `bookie.core.disk_space`. The state of a disk whose space cannot be read stays
as it was: writes to it will fail if it is full. Must never take a reserve whose space the storage
engine may still need.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from bookie.config import BookieConfig
from bookie.core.disk_space import (
    DiskLimits,
    DiskState,
    DiskUse,
    FileSystem,
    WriteGate,
    checkpoint_bytes,
    decide_gate,
)
from bookie.storage.disk.disk import Disk
from bookie.storage.disk.reserved_space import Reserve, ReservedDisk

_log = logging.getLogger(__name__)

_GARBAGE_BYTES_MAX = 1 << 20
"""Bytes that a round of garbage collection may write before it removes the first entry log: the
index without the deleted ledgers."""
_CURE = (
    "Cure: delete streams or shorten their retention, add bookies, or remove other files from the"
    " disk; the bookie becomes writable again by itself"
)


def low_water_mark(config: BookieConfig) -> float:
    """Returns the usage ratio below which a full disk is usable again."""
    return config.disk_usage_low_water_mark or config.disk_usage_threshold


def start_bytes(config: BookieConfig, *, journals: int, directories: int) -> int:
    """Returns the bytes that a start may have to write on a file system that holds this number of
    journals and ledger directories: a checkpoint of the whole caches, and a journal file each."""
    share = config.write_cache_bytes // len(config.ledger_directories)
    return journals * config.journal_file_bytes_max + directories * checkpoint_bytes(share)


def room_bytes(config: BookieConfig, *, journals: int, directories: int) -> int:
    """Returns the bytes that must be free for a bookie to stay writable: those that a start may
    write, and the log that a compaction writes in each ledger directory."""
    start = start_bytes(config, journals=journals, directories=directories)
    return start + directories * config.entry_log_bytes_max


def recovery_bytes(config: BookieConfig, *, journals: int, directories: int) -> int:
    """Returns the bytes that must be free for a bookie to take recovery adds: they fill one half
    of the caches and the journals, and wait while those cannot be written."""
    start = start_bytes(config, journals=journals, directories=directories)
    return max(start // 2, journals * config.journal_file_bytes_max)


@dataclass(slots=True)
class _Device:
    """A file system, with the bookie's directories on it."""

    directories: tuple[str, ...]
    system: FileSystem
    reserve: Reserve
    start_bytes: int
    recovery_bytes: int


class DiskMonitor:
    """Monitors all disks of a bookie. `open` must be called first, then `run`. Requests check
    `gate`; the storage uses `disk`."""

    def __init__(self, disk: Disk, config: BookieConfig) -> None:
        self.gate = WriteGate()
        self.is_forced = config.force_read_only
        """Whether an operator has set the bookie read-only; see `force`."""
        self.is_emptying = False
        """Whether an operator has the bookie's copies moved away; see `set_emptying`."""
        self._config = config
        self._real = disk
        self._devices: list[_Device] = []
        self._reserves: dict[str, Reserve] = {}
        self.disk = ReservedDisk(disk, self._reserves, self.ran_out)
        self.changes = 0
        """Number of changes of any state."""
        self._changed = trio.Event()
        self._look_wanted = trio.Event()
        self.bookie_id = ""

    async def open(self) -> None:
        """Finds the file systems, and releases reserves where a start has too little space. The
        directories must exist. Raises OSError."""
        config = self._config
        found: dict[int, list[str]] = {}
        for directory in (*config.journal_directories, *config.ledger_directories):
            number = await self._real.device(directory)
            found.setdefault(number, []).append(directory)
        for directories in found.values():
            await self._open_device(tuple(directories))
        for device in self._devices:
            # A start also writes to its index, which does not check for space.
            await self.disk.has_space(device.directories[0], device.start_bytes)
        await self.look()

    async def _open_device(self, directories: tuple[str, ...]) -> None:
        config = self._config
        journals = sum(one in config.journal_directories for one in directories)
        ledgers = len(directories) - journals
        start = start_bytes(config, journals=journals, directories=ledgers)
        reserve = Reserve(self._real, directories[0], config.disk_reserved_bytes or start)
        await reserve.find()
        for other in directories[1:]:  # left by earlier settings: it would never be released
            await Reserve(self._real, other, 0).find()
        limits = DiskLimits(
            warn_ratio=config.disk_usage_warn_threshold,
            full_ratio=config.disk_usage_threshold,
            low_water_ratio=low_water_mark(config),
            reserved_bytes=reserve.nbytes,
            required_bytes=room_bytes(config, journals=journals, directories=ledgers),
        )
        recovery = recovery_bytes(config, journals=journals, directories=ledgers)
        self._devices.append(_Device(directories, FileSystem(limits), reserve, start, recovery))
        self._reserves.update(dict.fromkeys(directories, reserve))

    async def run(self) -> None:
        """Checks the disks until cancelled."""
        interval_s = self._config.disk_check_interval_ms / 1000
        while True:
            await self.take_reserves()
            await self.look()
            with trio.move_on_after(self._next_look_s(interval_s)):
                await self._look_wanted.wait()
            self._look_wanted = trio.Event()

    async def take_reserves(self) -> None:
        """Takes reserves where there is still space for them. Called once before anything is
        served, or other programs could fill the disk first."""
        for device in self._devices:
            system = device.system
            is_known = system.use is not None and system.state is not DiskState.FULL
            if is_known and system.wants_reserve:
                await self._take_reserve(device.reserve)

    async def _take_reserve(self, reserve: Reserve) -> None:
        try:
            await reserve.take()
        except OSError as error:
            # A reserve holds no data. A write of data to a full disk reports its own error.
            _log.warning("no reserve directory=%s cause=%s", reserve.directory, error)

    def _next_look_s(self, interval_s: float) -> float:
        systems = [one.system for one in self._devices if one.system.use is not None]
        return min((one.next_look_s(interval_s) for one in systems), default=interval_s)

    async def look(self) -> None:
        """Reads the free space of all file systems, and decides again which adds are taken."""
        is_changed = False
        for device in self._devices:
            path = device.directories[0]
            try:
                total, free = await self._real.space(path)
            except OSError as error:
                _log.warning("space unknown directory=%s cause=%s", path, error)
                continue
            if device.system.look(DiskUse(total, free, device.reserve.held_bytes)):
                is_changed = True
                self._log_state(device)
        self._decide(is_changed)

    def _decide(self, is_changed: bool) -> None:
        was_read_only = self.gate.is_read_only
        asked = [(one.system, one.recovery_bytes) for one in self._devices if one.system.use]
        is_changed |= decide_gate(
            self.gate, asked, is_forced=self.is_forced, is_emptying=self.is_emptying
        )
        if self.gate.is_read_only != was_read_only:
            self._log_gate()
        if is_changed:
            self.changes += 1
            self._changed.set()
            self._changed = trio.Event()

    async def wait_change(self, seen: int) -> int:
        """Waits until `changes` differs from `seen`, and returns it."""
        while self.changes == seen:
            await self._changed.wait()
        return self.changes

    def ran_out(self, directory: str) -> None:
        """Counts the disk as full because a write found no space, whatever statfs reported."""
        for device in self._devices:
            if directory in device.directories and device.system.use is not None:
                is_changed = device.system.ran_out()
                if is_changed:
                    _log.warning(
                        "disk found full by a write bookie=%s directories=%s",
                        self.bookie_id,
                        ",".join(device.directories),
                    )
                self._decide(is_changed)
        self._look_wanted.set()

    def force(self, is_read_only: bool) -> None:
        """Sets the bookie read-only, or back, until the process ends. With a full disk it is
        read-only in any case."""
        self.is_forced = is_read_only
        self._decide(False)

    def set_emptying(self, is_emptying: bool) -> None:
        """Has the bookie accept no new entries while its copies are moved away. With a full disk,
        or if `force` was called, it stays read-only afterwards."""
        self.is_emptying = is_emptying
        self._decide(False)

    async def make_room_for_garbage(self) -> None:
        """Releases the reserve of a full disk if garbage collection could not begin otherwise."""
        for device in self._devices:
            if device.system.state is DiskState.FULL:
                nbytes = min(_GARBAGE_BYTES_MAX, device.start_bytes // 8)
                await self.disk.has_space(device.directories[0], nbytes)

    # --- states

    @property
    def state(self) -> DiskState:
        """The worst state of all file systems."""
        return max((one.system.state for one in self._devices), default=DiskState.OK)

    def state_of(self, directory: str) -> DiskState:
        """Returns the state of the file system of one of the bookie's directories."""
        found = (one.system.state for one in self._devices if directory in one.directories)
        return next(found, DiskState.OK)

    @property
    def held_bytes(self) -> int:
        """Bytes of all reserves that exist."""
        return sum(device.reserve.held_bytes for device in self._devices)

    def _log_state(self, device: _Device) -> None:
        system, use = device.system, device.system.use
        assert use is not None
        state = system.state
        _log.log(
            logging.INFO if state is DiskState.OK else logging.WARNING,
            "disk %s bookie=%s directories=%s usage=%.1f%% free_bytes=%d total_bytes=%d "
            "reserve_bytes=%d%s",
            state.name.lower(),
            self.bookie_id,
            ",".join(device.directories),
            100 * system.usage_ratio,
            use.free_bytes,
            use.total_bytes,
            use.held_bytes,
            f" needed_free_bytes={system.free_needed_bytes}. {_CURE}"
            if state is DiskState.FULL
            else "",
        )

    def _log_gate(self) -> None:
        if not self.gate.is_read_only:
            _log.info("bookie writable again bookie=%s", self.bookie_id)
            return
        full = [
            directory
            for device in self._devices
            if device.system.state is DiskState.FULL
            for directory in device.directories
        ]
        cause = f"full disk of {','.join(full)}" if full else "an operator's request"
        if self.is_emptying and not full:
            cause = "its copies are being moved away"
        _log.warning(
            "bookie read only bookie=%s cause=%s: reads and fences continue, recovery adds are %s",
            self.bookie_id,
            cause,
            "taken" if self.gate.takes_recovery else "refused",
        )
