"""Measures how long the disk itself takes to sync while a benchmark runs.

The latency of appends can only be judged against it, because other users of the disk slow down
both. A separate process overwrites 4 KiB of a file whose blocks are allocated and calls fdatasync,
about fifty times a second; its CPU time is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.children import ChildEnded, command, environment
from benchmarks.report import percentiles

_PAUSE_S = 0.02
_BLOCK_BYTES = 4096
_BLOCKS = 256


@contextmanager
def fdatasync_beside(directory: Path) -> Iterator[dict[str, float]]:
    """Syncs a file in `directory` during the block, and then fills the dictionary.

    It gets `fdatasync_p50_ms`, `fdatasync_p99_ms`, `fdatasync_p999_ms` and `fdatasync_count`.
    Raises ChildEnded.
    """
    found: dict[str, float] = {}
    with subprocess.Popen(
        command("disk", directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        if not probe.stdout.readline():  # else it has made its file
            raise ChildEnded("benchmarks.disk", probe.wait())
        yield found
        said, _ = probe.communicate()
    if probe.returncode:
        raise ChildEnded("benchmarks.disk", probe.returncode)
    seen_ms = array("d", json.loads(said))
    found |= {f"fdatasync_{name}": value for name, value in percentiles(seen_ms).items()}
    found["fdatasync_count"] = len(seen_ms)


class FilledFile:
    """A file whose blocks are allocated, of which one after the other is overwritten."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._block = os.urandom(_BLOCK_BYTES)
        self._number = 0
        os.pwrite(fd, self._block * _BLOCKS, 0)
        os.fsync(fd)

    def synced_write_ms(self) -> float:
        """Overwrites 4 KiB; returns how long that and fdatasync took."""
        self._number = (self._number + 1) % _BLOCKS
        started_s = time.perf_counter()
        os.pwrite(self._fd, self._block, self._number * _BLOCK_BYTES)
        os.fdatasync(self._fd)
        return (time.perf_counter() - started_s) * 1e3


def _probe(directory: Path) -> None:
    seen_ms = array("d")
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        filled = FilledFile(file.fileno())
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.set_blocking(sys.stdin.fileno(), False)
        while not _is_over():
            seen_ms.append(filled.synced_write_ms())
            time.sleep(_PAUSE_S)
    sys.stdout.write(json.dumps([round(ms, 4) for ms in seen_ms]))


def _is_over() -> bool:
    """Returns whether the benchmark has closed the standard input."""
    try:
        return not os.read(sys.stdin.fileno(), 1)
    except BlockingIOError:
        return False


if __name__ == "__main__":
    _probe(Path(sys.argv[1]))
