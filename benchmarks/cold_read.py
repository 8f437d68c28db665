"""`cold-read`: a stream read from the disk, by clients and bookies that have nothing in memory.

The cluster is started again and the page cache dropped before the stream is read in batches. Then
the entry logs of one bookie are read with O_DIRECT in pieces of 4 MiB, as `dd` does it, which is
what the disk gives.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from benchmarks.append import NAMESPACE, STREAM, append_many
from benchmarks.catchup import read_records
from benchmarks.cluster import (
    Phase,
    RunningCluster,
    start_cluster,
    stop_cluster,
    temporary_directory,
)
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.single_bookie import forget_pages
from stream import Namespace

_BYTES: Final = 1_000_000_000
_PIECE_BYTES: Final = 4 << 20


def cold_read(settings: Settings) -> Measured:
    count = settings.count or _BYTES // settings.size
    with temporary_directory(settings.dir) as directory:
        cluster = start_cluster(directory, settings.bookies)
        try:
            trio.run(_write, cluster.uri, settings, count)
        finally:
            stop_cluster(cluster)
        cluster = start_cluster(directory, settings.bookies)  # which also flushes what it replays
        try:
            phase, nbytes = trio.run(_read, cluster, settings, count)
        finally:
            stop_cluster(cluster)
        disk_mb_per_s = direct_mb_per_s(sorted(directory.glob("bookie-1/ledgers/*.log")))
    more = {
        "disk_mb_per_s": round(disk_mb_per_s, 1),
        "share_of_disk": round(nbytes / phase.wall_s / 1e6 / disk_mb_per_s, 3),
    }
    return Measured(count, nbytes, phase, more=more)


async def _write(uri: str, settings: Settings, count: int) -> None:
    async with Namespace.connect(uri, NAMESPACE) as namespace:
        await namespace.ensure(**settings.replication)
        async with namespace.writer(STREAM, create=True) as writer:
            await append_many(writer, os.urandom(settings.size), count)


async def _read(cluster: RunningCluster, settings: Settings, count: int) -> tuple[Phase, int]:
    await cluster.wait_idle()
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        forget_pages(cluster.directory)
        with cluster.measured() as phase:
            nbytes = await read_records(namespace, settings, count)
    return phase, nbytes


def direct_mb_per_s(paths: Sequence[Path]) -> float:
    """Reads files around the page cache, in pieces of 4 MiB, one after the other."""
    nbytes, took_s = 0, 0.0
    with mmap.mmap(-1, _PIECE_BYTES) as piece:  # of whole pages, as O_DIRECT wants it
        for path in paths:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            started_s = time.perf_counter()
            try:
                offset = 0
                while read := os.preadv(fd, [piece], offset):
                    offset += read
            finally:
                os.close(fd)
            took_s += time.perf_counter() - started_s
            nbytes += offset
    return nbytes / took_s / 1e6
