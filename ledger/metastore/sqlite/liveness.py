"""Tells whether another process of this machine is still there, surely or not at all.

A killed bookie must not hold its registration until a timeout when /proc can prove that it is
gone. Only proof counts: what cannot be seen (another pid namespace, no /proc) is not "gone".

Whose silence proves that he is dead: only that of one who could have spoken.

A process that is stopped in the middle of a change holds the file locked, and nobody's heartbeat
gets in. Whoever is first to have the file again must not bury all the others, all bookies among
them: that they were silent is not their fault. ZooKeeper has the same rule: a new leader gives
every session its whole timeout again. Pure, but shared by two threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """`start_ticks` tells a process from a later one with the same pid; "" and 0: unknown."""

    boot_id: str
    pid_space: str
    pid: int
    start_ticks: int


def identity_of(pid: int) -> ProcessIdentity:
    """The identity of the calling process, or of another one in its pid namespace."""
    found = _state_and_start(pid)
    return ProcessIdentity(
        boot_id=_boot_id(),
        pid_space=_pid_space(),
        pid=pid,
        start_ticks=found[1] if found is not None else 0,
    )


def is_gone(other: ProcessIdentity, here: ProcessIdentity) -> bool:
    """True only if `other` certainly does not run any more, seen from `here`."""
    if not other.boot_id or not here.boot_id:
        return False
    if other.boot_id != here.boot_id:
        return True
    if not other.pid_space or other.pid_space != here.pid_space or not other.start_ticks:
        return False
    found = _state_and_start(other.pid)
    if found is None:
        return not _is_signalable(other.pid)
    state, start_ticks = found
    return state in "ZX" or start_ticks != other.start_ticks


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process, or None if /proc does not show it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command name may hold anything but ends here
    return fields[0], int(fields[19])


def _is_signalable(pid: int) -> bool:
    # /proc may hide the processes of other users; a signal tells them from dead ones.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class HeartbeatMonitor:
    """Since when this process's own heartbeats got in without a gap: for that long, others' could
    have got in, too."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._steady: tuple[int, int] | None = None  # since when, last beat; replaced as a whole

    def began(self, now_ms: int) -> None:
        """A session of ours has begun. What was before is not known."""
        self._steady = (now_ms, now_ms)

    def beat(self, now_ms: int) -> None:
        """A heartbeat was committed, with this time."""
        assert self._steady is not None, "the heartbeat of no session"
        since_ms, last_ms = self._steady
        self._steady = (now_ms if self._is_gap(last_ms, now_ms) else since_ms, now_ms)

    def expired_sessions(
        self, others: Mapping[int, tuple[int, int]], own_ms: int | None, now_ms: int
    ) -> list[int]:
        """Which of the other sessions, with heartbeat and timeout in ms each, were silent for too
        long, as seen in one view of the file in which our own heartbeat is `own_ms`.

        Too long is longer than either's timeout: heartbeats come four times per timeout, and ours
        notices no gap that is shorter than half of ours. If ours is overdue, or newer than we have
        noted, then nothing is known.
        """
        if self._steady is None:
            return []
        since_ms, last_ms = self._steady
        if own_ms != last_ms or self._is_gap(last_ms, now_ms):
            return []
        return [
            session
            for session, (heartbeat_ms, timeout_ms) in others.items()
            if now_ms - max(heartbeat_ms, since_ms) > max(timeout_ms, self._timeout_ms)
        ]

    def _is_gap(self, last_ms: int, now_ms: int) -> bool:
        return now_ms - last_ms > self._timeout_ms // 2
