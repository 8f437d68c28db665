"""Runs one bookie with its own settings in a process: starts it, kills it, starts it again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.children import environment


@dataclass(frozen=True, slots=True)
class StartedBookie:
    process: subprocess.Popen[str]
    bookie_id: str
    ready_s: float
    """The time from starting the command to its "ready"."""

    def kill(self) -> None:
        """Kills the bookie with SIGKILL, so that it writes nothing at its end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def write_config(
    directory: Path, port: int, changes: Mapping[str, float | bool], metadata: Path | None = None
) -> Path:
    """Writes a configuration with all files under `directory`, and `changes` to the defaults.

    `metadata` is the file of the cluster, if it has other bookies.
    """
    lines = [
        f'metadata_uri = "sqlite://{metadata or directory / "cluster.db"}"',
        f'journal_directories = ["{directory}/journal"]',
        f'ledger_directories = ["{directory}/ledgers"]',
        f"port = {port}",
        *(f"{name} = {str(value).lower()}" for name, value in changes.items()),
    ]
    path = directory / "bookie.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def start_bookie(config: Path, log: Path) -> StartedBookie:
    """Starts the bookie, and returns when it is ready. Its other output goes to `log`."""
    started_s = time.perf_counter()
    with log.open("a") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stream.cli", "bookie", "run", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment(),
        )
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said.startswith("ready "):
        process.wait()
        raise SystemExit(f"the bookie did not start:\n{log.read_text()}")
    return StartedBookie(process, said.split()[1], time.perf_counter() - started_s)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def memory_mib(pid: int) -> tuple[float, float]:
    """Returns the resident memory of a process, now and at most, in MiB."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    now, most = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return round(now, 1), round(most, 1)


def bytes_fetched(pid: int) -> int:
    """Returns the bytes that the kernel has fetched from a disk for a process."""
    counts = dict(line.split(": ", 1) for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["read_bytes"])


def forget_pages(directory: Path) -> None:
    """Drops the files of a directory from the page cache, so that the next reads use the disk.

    Dirty pages are written back first, because they cannot be dropped.
    """
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def bytes_below(directory: Path) -> int:
    """Returns the disk space of the files in a directory."""
    return bytes_of(directory.rglob("*"))


def bytes_of(paths: Iterable[Path]) -> int:
    """Returns the disk space of files; deleted ones count as 0."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
