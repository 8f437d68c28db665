"""Whether a bookie can take more: flags that those that fill and those that free memory keep.

A write cache, the ledger states, the checkpoints and the journals report each change of their own;
connections read the result before each chunk at the cost of an attribute. The flags must never
differ from what asking all of them would return (tests/bookie/storage/test_capacity.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bookie.core.disk_space import WriteGate


def _nothing() -> None:
    """Stands for a listener that is not there yet."""


class DirectoryCapacity:
    """Whether one ledger directory can take adds, and whether a checkpoint of it is due."""

    __slots__ = (
        "are_states_due",
        "are_states_over",
        "is_blocked",
        "is_cache_full",
        "is_due",
        "is_failed",
        "is_full",
        "on_change",
        "on_due",
    )

    def __init__(self) -> None:
        self.is_cache_full = False
        """The active half of the write cache holds as much as it may."""
        self.are_states_due = False
        """As many ledgers are new or changed as may be before a checkpoint must store them."""
        self.are_states_over = False
        """There are twice as many: no request that could change another may be taken."""
        self.is_blocked = False
        """No checkpoint can begin now: one is in progress, waits for its disk, or has failed."""
        self.is_failed = False
        """No checkpoint will ever be made again."""
        self.is_due = False
        """Memory holds as much as it may before a checkpoint."""
        self.is_full = False
        """Adds must wait: a checkpoint is due and cannot begin."""
        self.on_change: Callable[[], None] = _nothing
        """Called when `is_full`, `are_states_over` or `is_failed` has changed."""
        self.on_due: Callable[[], None] = _nothing
        """Called with each report while a checkpoint is due."""

    def report_cache(self, is_full: bool) -> None:
        """For the write cache: call it when this changes, and with each add while it is full."""
        self.is_cache_full = is_full
        self._update()

    def report_states(self, are_due: bool, are_over: bool) -> None:
        """For the ledger states: call it as `report_cache`."""
        was_over, self.are_states_over = self.are_states_over, are_over
        self.are_states_due = are_due
        self._update(has_changed=was_over is not are_over)

    def report_checkpoint(self, *, is_blocked: bool, is_failed: bool) -> None:
        """For what makes the checkpoints: call it whenever one of these changes."""
        had_failed, self.is_failed = self.is_failed, is_failed
        self.is_blocked = is_blocked
        self._update(has_changed=had_failed is not is_failed)

    def _update(self, has_changed: bool = False) -> None:
        self.is_due = self.is_cache_full or self.are_states_due
        was_full, self.is_full = self.is_full, self.is_due and self.is_blocked
        if has_changed or was_full is not self.is_full:
            self.on_change()
        if self.is_due:
            self.on_due()


class QueueCapacity:
    """Whether one journal can take more frames and callbacks. Without bounds it always can."""

    __slots__ = (
        "bytes_max",
        "callbacks_max",
        "critical_bytes_max",
        "is_critical",
        "is_exceeded",
        "is_limited",
        "on_change",
    )

    def __init__(self) -> None:
        self.bytes_max = self.critical_bytes_max = self.callbacks_max = math.inf
        self.is_limited = False
        """More bytes wait for the journal than `bytes_max`: ordinary adds must wait."""
        self.is_critical = False
        """More bytes wait than `critical_bytes_max`, or more callbacks than `callbacks_max`."""
        self.is_exceeded = False
        """One of the two is set."""
        self.on_change: Callable[[], None] = _nothing

    def bound(self, *, bytes_max: float, critical_bytes_max: float, callbacks_max: float) -> None:
        """Sets the bounds. Call it before anything is queued."""
        self.bytes_max, self.critical_bytes_max = bytes_max, critical_bytes_max
        self.callbacks_max = callbacks_max

    def report(self, nbytes: int, callbacks: int) -> None:
        """For the journal: call it after each change of what waits for it, but for those that
        leave all bounds kept."""
        is_limited = nbytes > self.bytes_max
        is_critical = nbytes > self.critical_bytes_max or callbacks > self.callbacks_max
        if is_limited is not self.is_limited or is_critical is not self.is_critical:
            self.is_limited, self.is_critical = is_limited, is_critical
            self.is_exceeded = is_limited or is_critical
            self.on_change()


class Capacity:
    """Whether a bookie can take more. Read its flags at any time; they cost nothing."""

    __slots__ = ("_directories", "_gate", "_journals", "is_critical", "is_full", "is_limited")

    def __init__(
        self,
        gate: WriteGate,
        directories: Sequence[DirectoryCapacity],
        journals: Sequence[QueueCapacity],
    ) -> None:
        self._gate = gate
        self._directories = tuple(directories)
        self._journals = tuple(journals)
        self.is_full = False
        """A directory is full, and adds are not refused anyway. One full directory stops all,
        because the ledgers of the bytes in a socket are not known before they are received."""
        self.is_limited = False
        """Ordinary adds to some shard must wait: `is_full`, or a journal's queue is."""
        self.is_critical = False
        """Requests that put nothing into a cache may have to wait, too."""
        gate.on_change = self._update
        for directory in self._directories:
            directory.on_change = self._update
        for journal in self._journals:
            journal.on_change = self._update
        self._update()

    def _update(self) -> None:
        is_full = any(one.is_full for one in self._directories)
        if is_full and self._gate.is_shut:
            # While no add is taken none need wait, and reads must not wait behind adds. After a
            # failure all wait.
            is_full = any(one.is_failed for one in self._directories)
        self.is_full = is_full
        self.is_limited = is_full or any(one.is_limited for one in self._journals)
        self.is_critical = any(one.is_critical for one in self._journals) or any(
            one.are_states_over for one in self._directories
        )
