"""Decides which sessions of other processes are dead: by /proc, or by missing heartbeats.

A killed bookie must not keep its registration until a timeout if /proc can prove that it is gone.
Only a proof counts: a process that cannot be seen (another pid namespace, no /proc) is not "gone".

A missing heartbeat counts only if the process could have written one. A process that is stopped in
the middle of a change keeps the file locked, so that no heartbeat can be written. The first process
to get the lock afterwards must not expire all other sessions, which could not renew themselves.
ZooKeeper has the same rule: a new leader gives every session its whole timeout again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies a process; `start_ticks` distinguishes it from a later one with the same pid. ""
    and 0 mean unknown."""

    boot_id: str
    pid_space: str
    pid: int
    start_ticks: int


def identity_of(pid: int) -> ProcessIdentity:
    """Returns the identity of the calling process, or of another one in its pid namespace."""
    found = _state_and_start(pid)
    return ProcessIdentity(
        boot_id=_boot_id(),
        pid_space=_pid_space(),
        pid=pid,
        start_ticks=found[1] if found is not None else 0,
    )


def is_gone(other: ProcessIdentity, here: ProcessIdentity) -> bool:
    """Whether `other` has certainly ended, as seen from `here`."""
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
    """Returns state letter and start time of a process; None if /proc does not show it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # after the command name, which may contain ")"
    return fields[0], int(fields[19])


def _is_signalable(pid: int) -> bool:
    # /proc may hide the processes of other users; a signal distinguishes them from dead ones.
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
    """Since when this process has written its own heartbeats without a gap: during that time the
    other processes could have written theirs. Shared by two threads."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._steady: tuple[int, int] | None = None
        """Begin of the time without gaps, and last heartbeat; replaced as a whole."""

    def began(self, now_ms: int) -> None:
        """Records that a session of ours has begun. The time before it is unknown."""
        self._steady = (now_ms, now_ms)

    def beat(self, now_ms: int) -> None:
        """Records that a heartbeat with this time was committed."""
        assert self._steady is not None, "the heartbeat of no session"
        since_ms, last_ms = self._steady
        self._steady = (now_ms if self._is_gap(last_ms, now_ms) else since_ms, now_ms)

    def expired_sessions(
        self, others: Mapping[int, tuple[int, int]], own_ms: int | None, now_ms: int
    ) -> list[int]:
        """Returns which of the other sessions, each with heartbeat and timeout in ms, have expired,
        as seen in one view of the file in which our own heartbeat is `own_ms`.

        A session expires after the longer of its timeout and ours without a heartbeat: heartbeats
        are written four times per timeout, and a gap shorter than half of our timeout is not
        noticed. If our heartbeat is overdue, or newer than recorded here, nothing is known.
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
