"""`mixed`: writes, a tail and two catch-up readers together, compared with the same writes alone.

This runs twice: at a fixed rate, where each append is measured from when it was due, and with lists
of records as fast as possible. The readers are processes of their own. Those that catch up
repeatedly read another stream, larger than the bookies' caches, from its beginning to its end.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from benchmarks.append import NAMESPACE, STREAM, append_many
from benchmarks.children import child, report_of, running
from benchmarks.cluster import Phase, RunningCluster
from benchmarks.disk import fdatasync_beside
from benchmarks.fixed_rate import STAMP, at_fixed_rate
from benchmarks.report import Measured, percentiles
from benchmarks.settings import Settings
from benchmarks.systems.drivers import module_client
from stream import EARLIEST, Namespace, StreamWriter

_OLD: Final = "old"
_OLD_BYTES: Final = 300_000_000
_MANY_BYTES: Final = 300_000_000
_CATCH_UPS: Final = 2
_DEFAULT_SECONDS: Final = 10


class _CatchUps:
    """The catch-up readers; `taken` is the number of records that they have read."""

    def __init__(self) -> None:
        self.taken = 0
        self._last: dict[int, int] = {}

    async def run(self, uri: str, number: int, task_status: trio.TaskStatus[None]) -> None:
        buffer = b""
        async with child("mixed", uri) as reader:
            while True:
                *lines, buffer = (buffer + await reader.receive()).split(b"\n")
                for line in lines:
                    self.taken += int(line) - self._last.get(number, 0)
                    self._last[number] = int(line)
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED

    @classmethod
    @asynccontextmanager
    async def running(cls, uri: str) -> AsyncIterator[_CatchUps]:
        readers = cls()
        async with trio.open_nursery() as nursery:
            for number in range(_CATCH_UPS):
                await nursery.start(readers.run, uri, number)
            yield readers
            nursery.cancel_scope.cancel()


async def _paced(writer: StreamWriter, settings: Settings, count: int) -> array[float]:
    padding = os.urandom(max(0, settings.size - STAMP.size))

    async def append(_: bytes) -> object:
        return await writer.append(STAMP.pack(time.monotonic()) + padding)

    return await at_fixed_rate(append, b"", count, settings.rate)


async def _with_a_tail(
    cluster: RunningCluster, writer: StreamWriter, settings: Settings, count: int
) -> tuple[Phase, array[float], array[float]]:
    """Returns latencies of appends at the fixed rate, and of the tail that follows them."""
    # The tail reads the stream from its beginning: earlier records are its warm-up.
    warmup = writer.next_sequence + 1
    command = module_client("ledgerstream", cluster.uri)("follow", [STREAM])
    async with running("the tail", command, obeys=True) as tail:
        await tail.line()  # it is ready
        await _paced(writer, settings, 1)
        await tail.order(warmup)
        await tail.line()
        cluster.client_pids.append(tail.pid)
        await tail.order(count)
        with cluster.measured() as phase:
            appended_ms = await _paced(writer, settings, count)
        await tail.line()
        seen_ms = await report_of(tail)
    cluster.client_pids.remove(tail.pid)
    return phase, appended_ms, seen_ms


async def mixed(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or settings.rate * _DEFAULT_SECONDS
    many = _MANY_BYTES // settings.size
    value = os.urandom(settings.size)
    more: dict[str, Any] = {}
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        await namespace.ensure(**settings.replication)
        async with namespace.writer(_OLD, create=True) as old:
            await append_many(old, value, _OLD_BYTES // settings.size)
        async with namespace.writer(STREAM, create=True) as writer:
            await _paced(writer, settings, max(1, int(count * settings.warmup)))
            await cluster.wait_idle()
            alone_ms = await _paced(writer, settings, count)
            async with _CatchUps.running(cluster.uri) as readers:
                before, started_s = readers.taken, time.perf_counter()
                with fdatasync_beside(cluster.directory) as disk:
                    phase, together_ms, tail_ms = await _with_a_tail(
                        cluster, writer, settings, count
                    )
                taken_s = time.perf_counter() - started_s
                more["catchup_records_per_s"] = round((readers.taken - before) / taken_s)
            await cluster.wait_idle()
        async with namespace.writer("fast", create=True) as writer:
            await append_many(writer, value, many // 10)
            await cluster.wait_idle()
            alone_s = await _seconds(writer, value, many)
            async with _CatchUps.running(cluster.uri) as readers:
                before = readers.taken
                together_s = await _seconds(writer, value, many)
                more["fast_catchup_records_per_s"] = round((readers.taken - before) / together_s)
    alone, together = percentiles(alone_ms), percentiles(together_ms)
    more |= {f"alone_{name}": latency for name, latency in alone.items()}
    more |= {f"tail_{name}": latency for name, latency in percentiles(tail_ms).items()}
    more |= {f"ratio_{name}": round(together[name] / alone[name], 2) for name in alone}
    more |= {
        "fast_alone_records_per_s": round(many / alone_s),
        "fast_together_records_per_s": round(many / together_s),
        "fast_ratio": round(alone_s / together_s, 2),
        **disk,
    }
    return Measured(count, count * settings.size, phase, together_ms, more)


async def _seconds(writer: StreamWriter, value: bytes, count: int) -> float:
    started_s = time.perf_counter()
    await append_many(writer, value, count)
    return time.perf_counter() - started_s


async def _catch_up(uri: str) -> None:
    """Reads a stream repeatedly, and reports the total number of records twice a second."""
    taken, reported_s = 0, 0.0
    async with Namespace.connect(uri, NAMESPACE) as namespace:
        while True:
            async with namespace.reader(_OLD, start=EARLIEST) as reader:
                async for batch in reader.read_to_end():
                    taken += len(batch.values())
                    if time.monotonic() - reported_s > 0.5:
                        reported_s = time.monotonic()
                        sys.stdout.write(f"{taken}\n")
                        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(_catch_up, sys.argv[1])
