"""Tells whether another process of this machine is still there, surely or not at all.

A killed bookie must not hold its registration until a timeout when /proc can prove that it is
gone. Only proof counts: what cannot be seen (another pid namespace, no /proc) is not "gone".
"""

from __future__ import annotations

import os
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
