"""Decides from how full the disks are what a bookie still accepts.

The pure core of `bookie.disk_monitor`. A bookie stops accepting entries while there is still space
for everything that it has accepted: a checkpoint of its caches, the next journal file, one
compaction. On large disks the ratios decide, as Apache's do; on small ones the space needed does.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

KIB = 1024
GROWTH_BYTES_PER_S_MAX = 512 * KIB * KIB
"""The fastest rate at which a disk is assumed to fill until the next check."""
RESERVE_TAKEN_BELOW = 16
"""The reserve is created when less than this many times its size is free: on a disk with plenty of
space it would only take space from others."""
_LOOK_S_MIN = 0.02
"""The shortest time between two checks. A single writer on a fast disk writes a few MB in it, less
than what is reserved."""
_FULL_LOOKS = 10
"""A full disk is checked this many times as often, because writers wait for it."""
RAN_OUT_LOOKS = 10
"""The number of checks during which a write that ran out of space outweighs the numbers: they know
nothing of quotas or of inodes. Otherwise a bookie would become writable for a moment, again and
again."""


class DiskState(enum.IntEnum):
    """The state of one file system."""

    OK = 0
    WARNED = 1
    """Space is collected at once and more often; major compaction is suspended."""
    FULL = 2
    """Nothing new is written there."""


_STATE_BYTES = 150
"""A ledger's state in the index: key 9, record 33, explicit LAC up to 64, what RocksDB adds."""
_LEDGER_BYTES = 100
"""Beside that, of a ledger with entries: the head of a record in a log, the record of a run."""
_LOG_LEDGER_BYTES = 16
"""Of a ledger in the record of its entry log, which is rewritten each time."""


def checkpoint_bytes(
    cache_bytes: int, *, states: int = 0, ledgers: int = 0, log_ledgers: int = 0
) -> int:
    """Returns the space needed by a checkpoint of `cache_bytes` bytes of frames: entry logs with
    their headers, the index's records, the marks.

    Args:
        states: ledgers that are new or changed; a full disk accepts fences without a bound.
        ledgers: ledgers that the frames belong to.
        log_ledgers: ledgers with entries in the logs that were begun before.
    """
    return (
        cache_bytes
        + cache_bytes // 8
        + cache_bytes // 4
        + 64 * KIB
        + states * _STATE_BYTES
        + ledgers * (_STATE_BYTES + _LEDGER_BYTES + _LOG_LEDGER_BYTES)
        + log_ledgers * _LOG_LEDGER_BYTES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """When a file system counts as nearly full, and as full. Ratios are 0 to 1."""

    warn_ratio: float = 0.90
    full_ratio: float = 0.95
    low_water_ratio: float = 0.95
    """A full file system is usable again below this ratio."""
    reserved_bytes: int = 0
    """The size of the reserve, which counts as used whether it exists or not."""
    required_bytes: int = 0
    """With fewer free bytes a file system is full, whatever the ratio: the bookie needs them to
    run."""

    @property
    def recovered_bytes(self) -> int:
        """With this much free a full file system is usable again: a quarter more, so that the state
        does not oscillate."""
        return self.required_bytes + self.required_bytes // 4


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The sizes that a file system reported, in bytes."""

    total_bytes: int
    free_bytes: int
    held_bytes: int = 0
    """The size of the reserve that exists."""


class FileSystem:
    """The state of one file system, from one check to the next."""

    def __init__(self, limits: DiskLimits) -> None:
        self.limits = limits
        self.state = DiskState.OK
        self.use: DiskUse | None = None
        """The sizes at the last check; None before the first."""
        self._ran_out_looks = 0

    def look(self, use: DiskUse) -> bool:
        """Records the sizes of now, and returns whether the state changed."""
        self.use = use
        if self._ran_out_looks > 0:
            self._ran_out_looks -= 1
            return False  # full since then
        before, self.state = self.state, self._state_after(use)
        return self.state is not before

    def ran_out(self) -> bool:
        """Records that a write ran out of space, whatever the sizes were; returns whether the state
        changed."""
        self._ran_out_looks = RAN_OUT_LOOKS
        before, self.state = self.state, DiskState.FULL
        return self.state is not before

    def _state_after(self, use: DiskUse) -> DiskState:
        limits, usable = self.limits, self._usable(use)
        ratio = self._ratio(use)
        if ratio > limits.full_ratio or usable < limits.required_bytes:
            return DiskState.FULL
        if self.state is DiskState.FULL and (
            ratio >= limits.low_water_ratio or usable < limits.recovered_bytes
        ):
            return DiskState.FULL
        if ratio > limits.warn_ratio or usable < 2 * limits.required_bytes:
            return DiskState.WARNED
        return DiskState.OK

    def _usable(self, use: DiskUse) -> int:
        return use.free_bytes - max(0, self.limits.reserved_bytes - use.held_bytes)

    def _ratio(self, use: DiskUse) -> float:
        return 1 - self._usable(use) / use.total_bytes if use.total_bytes > 0 else 1.0

    @property
    def wants_reserve(self) -> bool:
        """Whether so little is left that the reserve must be created now."""
        assert self.use is not None, "nobody has looked yet"
        return self.use.free_bytes < RESERVE_TAKEN_BELOW * self.limits.reserved_bytes

    @property
    def usage_ratio(self) -> float:
        """The used share at the last check, including the reserve."""
        assert self.use is not None, "nobody has looked yet"
        return self._ratio(self.use)

    @property
    def free_needed_bytes(self) -> int:
        """The number of free bytes with which the file system is not full, or no longer full."""
        assert self.use is not None, "nobody has looked yet"
        limits = self.limits
        is_full = self.state is DiskState.FULL
        ratio = min(limits.full_ratio, limits.low_water_ratio) if is_full else limits.full_ratio
        room = limits.recovered_bytes if is_full else limits.required_bytes
        missing = max(0, limits.reserved_bytes - self.use.held_bytes)
        return max(room, int((1 - ratio) * self.use.total_bytes) + 1) + missing

    def next_look_s(self, interval_s: float) -> float:
        """Returns the seconds until it could be full, at most `interval_s`; a full one is checked
        often."""
        assert self.use is not None, "nobody has looked yet"
        if self.state is DiskState.FULL:
            return interval_s / _FULL_LOOKS
        margin = self.use.free_bytes - self.free_needed_bytes
        return min(interval_s, max(_LOOK_S_MIN, margin / GROWTH_BYTES_PER_S_MAX))

    def has_free(self, nbytes: int) -> bool:
        """Returns whether `nbytes` are free, counting what the reserve would give."""
        assert self.use is not None, "nobody has looked yet"
        return self.use.free_bytes + self.use.held_bytes >= nbytes


class WriteGate:
    """What a bookie accepts now; read for each chunk of adds, so its attributes are plain.

    Fences and forced ledgers are always accepted: they need almost no space, and recovery depends
    on them.
    """

    __slots__ = ("is_emptying", "is_read_only", "on_change", "takes_recovery")

    def __init__(self) -> None:
        self.is_read_only = False
        """Ordinary adds are refused."""
        self.is_emptying = False
        """The bookie's copies are moved away, so it gets no ledger that it does not have. Implies
        `is_read_only`."""
        self.takes_recovery = True
        """Adds of recovery or with high priority, and a writer's last add confirmed, are accepted
        even in a read-only bookie."""
        self.on_change: Callable[[], None] | None = None

    def set(self, *, is_read_only: bool, takes_recovery: bool, is_emptying: bool = False) -> None:
        self.is_read_only, self.takes_recovery = is_read_only, takes_recovery
        self.is_emptying = is_emptying
        if self.on_change is not None:
            self.on_change()

    def refuses(self, *, is_urgent: bool) -> bool:
        return self.is_read_only and not (is_urgent and self.takes_recovery)

    @property
    def is_shut(self) -> bool:
        """Whether no add at all is accepted, so that none needs to wait for capacity in a cache
        either."""
        return self.is_read_only and not self.takes_recovery


def decide_gate(
    gate: WriteGate,
    file_systems: Iterable[tuple[FileSystem, int]],
    *,
    is_forced: bool,
    is_emptying: bool = False,
) -> bool:
    """Sets what is accepted, and returns whether that changed.

    Args:
        file_systems: those the bookie writes to, each with the space that it takes to flush what
            recovery adds. All are needed, because a ledger's id decides where it is stored.
        is_forced: an operator wants the bookie read-only. Recovery continues all the same.
        is_emptying: an operator has its copies moved away.
    """
    every = list(file_systems)
    is_read_only = is_forced or is_emptying or any(one.state is DiskState.FULL for one, _ in every)
    takes_recovery = all(
        one.state is not DiskState.FULL or one.has_free(nbytes) for one, nbytes in every
    )
    before = gate.is_read_only, gate.takes_recovery, gate.is_emptying
    gate.set(is_read_only=is_read_only, takes_recovery=takes_recovery, is_emptying=is_emptying)
    return before != (is_read_only, takes_recovery, is_emptying)
