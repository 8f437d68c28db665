"""`tail`: from a writer in one process to a reader in another, at a fixed rate.

The latency is from just before the append until the reader has the record; both processes read the
same monotonic clock. The disk's own fdatasync is measured at the same time.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from array import array

import trio

from benchmarks.append import NAMESPACE, STREAM
from benchmarks.children import child
from benchmarks.cluster import RunningCluster
from benchmarks.disk import fdatasync_beside
from benchmarks.report import Measured
from benchmarks.settings import Settings
from stream import EARLIEST, Namespace, StreamWriter

_DEFAULT_SECONDS = 10
STAMP = struct.Struct(">d")
"""The time of a record's append by the monotonic clock, in the first bytes of its value."""


async def append_at_rate(writer: StreamWriter, size: int, count: int, rate: int) -> None:
    """Appends `rate` records per second, each beginning with the time of its append."""
    padding = os.urandom(max(0, size - STAMP.size))
    started_s = time.monotonic()
    sent = 0
    while sent < count:
        due = min(count, int((time.monotonic() - started_s) * rate) + 1)
        for _ in range(due - sent):
            while not writer.has_room:
                await writer.wait_room()
            writer.append_nowait(STAMP.pack(time.monotonic()) + padding)
        sent = due
        await trio.sleep(max(0.0, started_s + sent / rate - time.monotonic()))
    await writer.flush()


async def tail(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or settings.rate * _DEFAULT_SECONDS
    warmup = max(1, int(count * settings.warmup))
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        await namespace.ensure(**settings.replication)
        await namespace.create_stream(STREAM)
        async with (
            namespace.writer(STREAM) as writer,
            child("tail", cluster.uri, warmup, count) as reader,
        ):
            await append_at_rate(writer, settings.size, warmup, settings.rate)
            await reader.receive()  # it has read the warm-up
            cluster.client_pids.append(reader.pid)
            with fdatasync_beside(cluster.directory) as disk, cluster.measured() as phase:
                await append_at_rate(writer, settings.size, count, settings.rate)
                seen = await reader.line()
                # Measured here, because /proc has no CPU time of a process that has ended.
    return Measured(count, count * settings.size, phase, array("d", json.loads(seen)), disk)


async def _read(cluster: str, warmup: int, count: int) -> None:
    latencies_ms: list[float] = []
    async with (
        Namespace.connect(cluster, NAMESPACE) as namespace,
        namespace.reader(STREAM, start=EARLIEST) as reader,
    ):
        seen = 0
        async for batch in reader.batches():
            now_s = time.monotonic()
            for value in batch.values():
                seen += 1
                if seen > warmup:
                    latencies_ms.append(round((now_s - STAMP.unpack_from(value)[0]) * 1e3, 3))
                elif seen == warmup:
                    sys.stdout.write("warm")
                    sys.stdout.flush()
            if seen >= warmup + count:
                break
    sys.stdout.write(json.dumps(latencies_ms) + "\n")
    sys.stdout.flush()
    await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(_read, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
