"""`spark-read`: Spark reads a stream as a batch, and the same values from local Parquet.

The reads are interleaved in one session: the result is the ratio of the two. Both are read from the
page cache or the disk, as writing has left them. `noop` consumes all rows; `sum` adds up the
lengths of all values.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from benchmarks.cluster import Phase, RunningCluster, cpu_s
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.spark_session import spark_session
from stream import Namespace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMESPACE, STREAM = "bench", "values"
_COUNT, _PAIRS, _PARTITIONS = 5_000_000, 5, 2
_LIST_RECORDS = 20_000
_LISTS_AT_ONCE = 4

Sink = Callable[["DataFrame"], None]


async def fill(uri: str, settings: Settings, count: int) -> None:
    """Writes a stream of `count` distinct values."""
    left = count
    async with Namespace.connect(uri, NAMESPACE) as namespace:
        await namespace.ensure(**settings.replication)
        async with namespace.writer(STREAM, create=True) as writer:

            async def append_lists() -> None:
                nonlocal left
                while left > 0:
                    records = min(_LIST_RECORDS, left)
                    left -= records
                    noise, size = os.urandom(records * settings.size), settings.size
                    await writer.append_many(
                        [noise[at : at + size] for at in range(0, len(noise), size)]
                    )

            async with trio.open_nursery() as nursery:
                for _ in range(_LISTS_AT_ONCE):
                    nursery.start_soon(append_lists)


def to_nowhere(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def sum_of_lengths(rows: DataFrame) -> None:
    from pyspark.sql.functions import length
    from pyspark.sql.functions import sum as total

    rows.select(total(length("value"))).collect()


SINKS: dict[str, Sink] = {"noop": to_nowhere, "sum": sum_of_lengths}


def timed(job: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    job()
    return time.perf_counter() - started_s


async def spark_read(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or _COUNT
    await fill(cluster.uri, settings, count)
    await cluster.wait_idle()
    return await trio.to_thread.run_sync(_measure, settings, cluster, count)


def _measure(settings: Settings, cluster: RunningCluster, count: int) -> Measured:
    parquet = cluster.directory / "values.parquet"
    with spark_session(cluster.directory / "spark") as spark:

        def ours() -> DataFrame:
            return (
                spark.read.format("ledgerstream")
                .options(cluster=cluster.uri, stream=f"{NAMESPACE}/{STREAM}", columns="value")
                .options(minTasks=_PARTITIONS, maxBytesPerTask="1g")
                .load()
            )

        def theirs() -> DataFrame:
            return spark.read.parquet(str(parquet))

        ours().coalesce(_PARTITIONS).write.parquet(str(parquet))
        assert ours().rdd.getNumPartitions() == theirs().rdd.getNumPartitions() == _PARTITIONS
        assert ours().count() == count, "the stream has all values"
        seconds: dict[str, list[float]] = {}
        bookies_s: list[float] = []
        phase = Phase()
        for sink in SINKS:  # warm the code of each
            timed(lambda sink=sink: SINKS[sink](ours()))  # type: ignore[misc]
            timed(lambda sink=sink: SINKS[sink](theirs()))  # type: ignore[misc]
        for _ in range(_PAIRS):
            for sink, consume in SINKS.items():
                before_s = sum(map(cpu_s, cluster.server_pids))
                ours_s = timed(lambda consume=consume: consume(ours()))  # type: ignore[misc]
                bookies_s.append(sum(map(cpu_s, cluster.server_pids)) - before_s)
                parquet_s = timed(lambda consume=consume: consume(theirs()))  # type: ignore[misc]
                seconds.setdefault(f"{sink}_s", []).append(ours_s)
                seconds.setdefault(f"{sink}_parquet_s", []).append(parquet_s)
                seconds.setdefault(f"{sink}_ratio", []).append(ours_s / parquet_s)
        phase.wall_s = statistics.median(seconds["noop_s"])
        phase.bookies_cpu_s = statistics.median(bookies_s)
    more: dict[str, Any] = {
        name: round(statistics.median(values), 3) for name, values in seconds.items()
    }
    more["noop_ratios"] = [round(value, 2) for value in seconds["noop_ratio"]]
    more["parquet_bytes"] = _size(parquet)
    return Measured(count, count * settings.size, phase, None, more)


def _size(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.glob("*.parquet"))
