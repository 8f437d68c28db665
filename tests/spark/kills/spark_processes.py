"""Finds the processes of Spark in /proc: the descendants of a JVM, by their command lines.

Spark runs Python in forks of daemons, one daemon per module, and a stream's source in a process of
its own. Executors of a local cluster are child JVMs of the driver, with daemons of their own.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

KINDS = ("task worker", "task daemon", "source", "sink", "planner", "executor")
_PLANNERS = ("plan_data_source_read", "write_into_data_source", "create_data_source")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    state: str
    command: str


def processes() -> dict[int, Process]:
    """Returns all running processes of the machine."""
    found = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            stat = (directory / "stat").read_text()
            command = (directory / "cmdline").read_text(errors="replace").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
        if state not in "ZX":
            pid = int(directory.name)
            found[pid] = Process(pid, int(parent), state, command)
    return found


def below(root: int, table: dict[int, Process]) -> list[Process]:
    """Returns all descendants of a process, sorted by their ids."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found, ahead = [], [root]
    while ahead:
        for child in children.get(ahead.pop(), []):
            found.append(child)
            ahead.append(child.pid)
    return sorted(found, key=lambda process: process.pid)


def kind_of(process: Process, table: dict[int, Process]) -> str | None:
    """Returns one of KINDS, or None for a process that is not to be killed."""
    command = process.command
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if "python_streaming_source_runner" in command:
        return "source"
    if "pyspark.daemon" not in command:
        return None
    parent = table.get(process.parent)
    is_fork = parent is not None and "pyspark.daemon" in parent.command
    if "pyspark.daemon pyspark.worker" in command:
        return "task worker" if is_fork else "task daemon"
    if is_fork and "python_streaming_sink_runner" in command:
        return "sink"
    if is_fork and any(planner in command for planner in _PLANNERS):
        return "planner"
    return None


def find_processes(jvm: int, kind: str) -> list[int]:
    """Returns the descendants of a JVM that have this kind."""
    table = processes()
    return [process.pid for process in below(jvm, table) if kind_of(process, table) == kind]


def send(pid: int, number: signal.Signals) -> bool:
    """Sends a signal; returns whether the process existed."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_stopped(pid: int, patience_s: float) -> bool:
    """Waits until a process has stopped; returns whether it has."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        if stat[stat.rindex(")") + 2] == "T":
            return True
        time.sleep(0.01)  # there is no event for a process that is not a child
    return False


def kill_tree(root: int) -> None:
    """Kills a process and all its descendants with -9."""
    for process in below(root, processes()):
        send(process.pid, signal.SIGKILL)
    send(root, signal.SIGKILL)
