"""A standalone cluster in processes of its own, and the CPU time of all processes involved.

The cluster is started as a user starts it. CPU time comes from /proc: user and system time of all
threads, between the begin and the end of a measured phase. A bookie that ends by itself invalidates
a measurement and is a bug: this is reported clearly, and its log is kept after the benchmark.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.children import environment

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE_TRIES, _IDLE_PROBE_S, _IDLE_CPU_S = 40, 0.5, 0.03
_SIGNS_OF_AN_END = ("bookie ends", "Traceback")


@dataclass(slots=True)
class Phase:
    """The measurements of one phase; filled when it ends."""

    wall_s: float = 0.0
    client_cpu_s: float = 0.0
    bookies_cpu_s: float = 0.0


@dataclass(slots=True)
class RunningCluster:
    uri: str
    directory: Path
    process: subprocess.Popen[str]
    ready_s: float
    """The time from starting the command to its "ready"."""
    client_pids: list[int] = field(default_factory=lambda: [os.getpid()])
    first_pids: dict[Path, str] = field(default_factory=dict)
    """The process ids of the bookies, by their pid files, when the cluster became ready."""

    def ended_bookies(self) -> list[Path]:
        """Returns the directories of bookies that have ended by themselves.

        To be called before the cluster is stopped.
        """
        return [path.parent for path, pid in self.first_pids.items() if not _says(path, pid)]

    def bookie_pid(self, number: int) -> int:
        """Returns the process id of bookie `number`, counted from 1."""
        return int((self.directory / f"bookie-{number}" / "bookie.pid").read_text())

    @property
    def server_pids(self) -> list[int]:
        pids = [int(path.read_text()) for path in self.directory.glob("bookie-*/bookie.pid")]
        return [self.process.pid, *pids]

    async def wait_idle(self) -> None:
        """Waits until the bookies have finished pending work, such as a checkpoint."""
        for _ in range(_IDLE_TRIES):
            before_s = sum(map(cpu_s, self.server_pids))
            await trio.sleep(_IDLE_PROBE_S)
            if sum(map(cpu_s, self.server_pids)) - before_s < _IDLE_CPU_S:
                return

    def measured(self) -> AbstractContextManager[Phase]:
        return measured(self.server_pids, self.client_pids)


@contextmanager
def measured(servers: Sequence[int], clients: Sequence[int]) -> Iterator[Phase]:
    """Measures the CPU time of processes during the block; all of them must outlive it."""
    phase = Phase()
    server_cpu_s, client_cpu_s = sum(map(cpu_s, servers)), sum(map(cpu_s, clients))
    started_s = time.perf_counter()
    yield phase
    phase.wall_s = time.perf_counter() - started_s
    phase.client_cpu_s = sum(map(cpu_s, clients)) - client_cpu_s
    phase.bookies_cpu_s = sum(map(cpu_s, servers)) - server_cpu_s


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process: user and system, with threads that have ended."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def descendants(pid: int) -> Iterator[int]:
    """Yields the processes that this process started, and those that they started."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield int(child)
            yield from descendants(int(child))


def start_cluster(
    directory: Path, bookies: int | None, *, has_janitor: bool = False
) -> RunningCluster:
    """Starts `ledgerstream standalone`; returns when it is ready."""
    command = [sys.executable, "-P", "-m", "stream.cli", "standalone", "--dir", str(directory)]
    if not has_janitor:
        command += ["--janitor-interval-s", "0"]
    if bookies is not None:
        command += ["--bookies", str(bookies)]
    started_s = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    said = process.stdout.readline().split()
    ready_s = time.perf_counter() - started_s
    if len(said) != 2 or said[0] != "ready":
        process.wait()
        raise SystemExit("the cluster did not start; its own message is above")
    pids = {path: path.read_text() for path in sorted(directory.glob("bookie-*/bookie.pid"))}
    return RunningCluster(said[1], directory, process, ready_s, first_pids=pids)


def _says(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except FileNotFoundError:
        return False


def stop_cluster(cluster: RunningCluster) -> None:
    """Stops the cluster; reports bookies that ended early or badly, and keeps their logs."""
    ended = cluster.ended_bookies()
    cluster.process.send_signal(signal.SIGTERM)
    try:
        cluster.process.wait(30)
    except subprocess.TimeoutExpired:
        cluster.process.kill()
        cluster.process.wait()
    if cluster.process.stdout is not None:
        cluster.process.stdout.close()
    for path in sorted(cluster.directory.glob("bookie-*/bookie.log")):
        text = path.read_text(errors="replace")
        if path.parent in ended or any(sign in text for sign in _SIGNS_OF_AN_END):
            kept = Path(tempfile.mkdtemp(prefix="ledgerstream-log-")) / path.name
            shutil.copy(path, kept)
            sys.stderr.write(
                f"\n!!! {path.parent.name} ENDED BY ITSELF: a bug, and the measurement is "
                f"invalid. Its log is kept: {kept}\n\n"
            )


@contextmanager
def temporary_directory(parent: Path | None) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="ledgerstream-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def stop_all_when_terminated() -> None:
    """Makes SIGTERM raise an error in this process, so that its children are ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


@contextmanager
def running_cluster(
    bookies: int, parent: Path | None, *, has_janitor: bool = False
) -> Iterator[RunningCluster]:
    """Runs a new cluster in a temporary directory under `parent` during the block."""
    with temporary_directory(parent) as directory:
        cluster = start_cluster(directory, bookies, has_janitor=has_janitor)
        try:
            yield cluster
        finally:
            stop_cluster(cluster)
