"""How full disks are, and what a bookie may therefore still take.

Pure twin of `bookie.disk_monitor`. A bookie stops taking entries while there is still room for all
that it took: a checkpoint of its caches, the next journal file, one compaction. On large disks the
ratios rule, as Apache's do; on small ones what is needed does.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

KIB = 1024
GROWTH_BYTES_PER_S_MAX = 512 * KIB * KIB
"""Faster no disk is filled, as far as the time of the next look goes."""
RESERVE_TAKEN_BELOW = 16
"""The reserve is made when so many times its size is free: on a roomy disk it would only take
room from others."""
_LOOK_S_MIN = 0.02
"""A writer that is alone on a fast disk takes a few MB in this time, less than what is kept."""
_FULL_LOOKS = 10
"""A full disk is looked at so many times as often: writers wait for it."""
RAN_OUT_LOOKS = 10
"""For so many looks a write that found no room is believed, whatever the numbers say: they know
nothing of quotas, nor of files that a file system has no place for. Without it a bookie would be
writable for a moment, again and again."""


class DiskState(enum.IntEnum):
    """Of one file system."""

    OK = 0
    WARNED = 1
    """Space is collected at once and more often; major compaction waits."""
    FULL = 2
    """Nothing new is written there."""


_STATE_BYTES = 150
"""A ledger's state in the index: key 9, record 33, explicit LAC up to 64, what RocksDB adds."""
_LEDGER_BYTES = 100
"""Beside that, of a ledger with entries: the head of a record in a log, the record of a run."""
_LOG_LEDGER_BYTES = 16
"""Of a ledger in the record of its entry log, which is written anew each time."""


def checkpoint_bytes(
    cache_bytes: int, *, states: int = 0, ledgers: int = 0, log_ledgers: int = 0
) -> int:
    """Room for a checkpoint of so many bytes of frames: entry logs with their heads, the index's
    records, the marks.

    Args:
        states: ledgers that are new or changed; a full disk takes fences of ever more of them.
        ledgers: ledgers that the frames are of.
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
    """When a file system counts as nearly full, and as full. Ratios of 0 to 1."""

    warn_ratio: float = 0.90
    full_ratio: float = 0.95
    low_water_ratio: float = 0.95
    """A full one is usable again below this."""
    reserved_bytes: int = 0
    """Of the reserve, which counts as used whether it is there or not."""
    required_bytes: int = 0
    """With less free it is full, whatever the ratio: what the bookie needs to go on."""

    @property
    def recovered_bytes(self) -> int:
        """With so much free a full one is usable again: a quarter more, lest it flutters."""
        return self.required_bytes + self.required_bytes // 4


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a file system said. Bytes."""

    total_bytes: int
    free_bytes: int
    held_bytes: int = 0
    """Of the reserve that is really there."""


class FileSystem:
    """The state of one file system, from one look to the next."""

    def __init__(self, limits: DiskLimits) -> None:
        self.limits = limits
        self.state = DiskState.OK
        self.use: DiskUse | None = None
        """At the last look; None before the first."""
        self._ran_out_looks = 0

    def look(self, use: DiskUse) -> bool:
        """Takes note of what it says now; whether the state changed."""
        self.use = use
        if self._ran_out_looks > 0:
            self._ran_out_looks -= 1
            return False  # full since then
        before, self.state = self.state, self._state_after(use)
        return self.state is not before

    def ran_out(self) -> bool:
        """A write found no room, whatever the numbers were; whether the state changed."""
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
        """There is so little left that the reserve must be there in time."""
        assert self.use is not None, "nobody has looked yet"
        return self.use.free_bytes < RESERVE_TAKEN_BELOW * self.limits.reserved_bytes

    @property
    def usage_ratio(self) -> float:
        """At the last look, the reserve included."""
        assert self.use is not None, "nobody has looked yet"
        return self._ratio(self.use)

    @property
    def free_needed_bytes(self) -> int:
        """With so much free it is not full, or not full any more."""
        assert self.use is not None, "nobody has looked yet"
        limits = self.limits
        is_full = self.state is DiskState.FULL
        ratio = min(limits.full_ratio, limits.low_water_ratio) if is_full else limits.full_ratio
        room = limits.recovered_bytes if is_full else limits.required_bytes
        missing = max(0, limits.reserved_bytes - self.use.held_bytes)
        return max(room, int((1 - ratio) * self.use.total_bytes) + 1) + missing

    def next_look_s(self, interval_s: float) -> float:
        """Seconds until it could be full, at most `interval_s`; a full one is asked often."""
        assert self.use is not None, "nobody has looked yet"
        if self.state is DiskState.FULL:
            return interval_s / _FULL_LOOKS
        margin = self.use.free_bytes - self.free_needed_bytes
        return min(interval_s, max(_LOOK_S_MIN, margin / GROWTH_BYTES_PER_S_MAX))

    def has_free(self, nbytes: int) -> bool:
        """There is so much room, with what the reserve would give."""
        assert self.use is not None, "nobody has looked yet"
        return self.use.free_bytes + self.use.held_bytes >= nbytes


class WriteGate:
    """What a bookie takes now. Plain and mutable: asked for each chunk of adds.

    Fences and forced ledgers always pass: they need almost nothing, and recovery hangs on them.
    """

    __slots__ = ("is_read_only", "on_change", "takes_recovery")

    def __init__(self) -> None:
        self.is_read_only = False
        """Ordinary adds are refused."""
        self.takes_recovery = True
        """Adds of recovery or with priority, and a writer's last add confirmed pass, read-only or
        not."""
        self.on_change: Callable[[], None] | None = None

    def set(self, *, is_read_only: bool, takes_recovery: bool) -> None:
        self.is_read_only, self.takes_recovery = is_read_only, takes_recovery
        if self.on_change is not None:
            self.on_change()

    def refuses(self, *, is_urgent: bool) -> bool:
        return self.is_read_only and not (is_urgent and self.takes_recovery)

    @property
    def is_shut(self) -> bool:
        """No add at all is taken, so none need wait for room in a cache either."""
        return self.is_read_only and not self.takes_recovery


def decide_gate(
    gate: WriteGate,
    file_systems: Iterable[tuple[FileSystem, int]],
    *,
    is_forced: bool,
) -> bool:
    """Sets what is taken; whether that changed.

    Args:
        file_systems: those the bookie writes to, each with the room that it takes to flush what
            recovery adds. All are needed: which ledger lies where follows from its id.
        is_forced: an operator wants it read-only. Recovery goes on all the same.
    """
    every = list(file_systems)
    is_read_only = is_forced or any(one.state is DiskState.FULL for one, _ in every)
    takes_recovery = all(
        one.state is not DiskState.FULL or one.has_free(nbytes) for one, nbytes in every
    )
    before = gate.is_read_only, gate.takes_recovery
    gate.set(is_read_only=is_read_only, takes_recovery=takes_recovery)
    return before != (is_read_only, takes_recovery)
