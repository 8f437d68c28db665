"""One bookie in a process of its own, with settings of its own: started, killed, started again."""

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
    """From starting the command to its "ready"."""

    def kill(self) -> None:
        """SIGKILL: nothing is written on the way out."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def write_config(
    directory: Path, port: int, changes: Mapping[str, float | bool], metadata: Path | None = None
) -> Path:
    """A configuration with everything under `directory`, and default settings but `changes`.
    `metadata`: the cluster's file, if it has other bookies."""
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
    """Returns when it says that it is ready. What it has to say beside that goes to `log`."""
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
    """What a process holds in memory now, and what it held at most, in MiB."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    now, most = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return round(now, 1), round(most, 1)


def bytes_fetched(pid: int) -> int:
    """What the kernel fetched from a disk for a process in its life."""
    counts = dict(line.split(": ", 1) for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["read_bytes"])


def forget_pages(directory: Path) -> None:
    """Whoever reads the files in a directory next reads them from the disk. What was not written
    back yet is written first: pages that were not cannot go."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def bytes_below(directory: Path) -> int:
    """What the files in a directory take on the disk."""
    return bytes_of(directory.rglob("*"))


def bytes_of(paths: Iterable[Path]) -> int:
    """What files take on the disk; those that are gone take nothing."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
