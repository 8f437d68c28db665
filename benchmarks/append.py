"""`append`: appends records to one stream through the stream API, in three ways.

many: lists of records by `append_many`. single: `append_nowait` one at a time, without waiting for
each. callers: a number of tasks, each awaiting its own `append`.
"""

from __future__ import annotations

import os
import time
from array import array

import trio

from benchmarks.cluster import Phase, RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from ledger.options import ClientOptions
from stream import Namespace, StreamWriter

NAMESPACE, STREAM = "bench", "records"
_LIST_RECORDS = 2000
_LISTS_AT_ONCE = 8
_DEFAULT_COUNTS = {"many": 4_000_000, "single": 2_000_000, "callers": 300_000}


async def append_many(writer: StreamWriter, value: bytes, count: int) -> array[float]:
    """Appends lists from a few tasks; measures the latency of each list."""
    latencies_ms = array("d")
    left = count

    async def append_lists() -> None:
        nonlocal left
        while left > 0:
            size = min(_LIST_RECORDS, left)
            left -= size
            started_s = time.perf_counter()
            await writer.append_many([value] * size)
            latencies_ms.append((time.perf_counter() - started_s) * 1e3)

    async with trio.open_nursery() as nursery:
        for _ in range(_LISTS_AT_ONCE):
            nursery.start_soon(append_lists)
    return latencies_ms


async def append_single(writer: StreamWriter, value: bytes, count: int) -> array[float]:
    """Appends from one task, which never waits for a record, only for free capacity."""
    append = writer.append_nowait
    for _ in range(count):
        try:
            append(value)
        except trio.WouldBlock:
            await writer.wait_room()
            append(value)
    await writer.flush()
    return array("d")


async def append_callers(
    writer: StreamWriter, value: bytes, count: int, callers: int
) -> array[float]:
    """Appends from many tasks, each of which waits until its record is durable."""
    latencies_ms = array("d")

    async def call(each: int) -> None:
        for _ in range(each):
            started_s = time.perf_counter()
            await writer.append(value)
            latencies_ms.append((time.perf_counter() - started_s) * 1e3)

    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(call, count // callers)
    return latencies_ms


async def append(settings: Settings, cluster: RunningCluster, stream: str = STREAM) -> Measured:
    count = settings.count or _DEFAULT_COUNTS[settings.mode]
    if settings.mode == "callers":
        count = count // settings.callers * settings.callers
    value = os.urandom(settings.size)

    async def run(writer: StreamWriter, how_many: int) -> array[float]:
        if settings.mode == "many":
            return await append_many(writer, value, how_many)
        if settings.mode == "single":
            return await append_single(writer, value, how_many)
        return await append_callers(writer, value, how_many, settings.callers)

    options = ClientOptions(window_entries=settings.window)
    async with Namespace.connect(cluster.uri, NAMESPACE, options=options) as namespace:
        await namespace.ensure(**settings.replication)
        async with namespace.writer(stream, create=True) as writer:
            # The fastest mode comes first, until journal files are recycled, then the measured one.
            await append_many(writer, value, settings.warmup_count())
            await run(writer, max(settings.callers, int(count * settings.warmup)))
            await cluster.wait_idle()
            before = writer.statistics()
            phase: Phase
            with cluster.measured() as phase:
                latencies_ms = await run(writer, count)
            after = writer.statistics()
    more = {
        "records_per_entry": round(count / max(1, after.entries - before.entries), 1),
        "rolls": after.rolls - before.rolls,
    }
    return Measured(count, count * settings.size, phase, latencies_ms, more)
