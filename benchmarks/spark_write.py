"""`spark-write`: Spark writes the same cached rows to a stream and to local Parquet, in turns.

The result is the ratio of the two in one run. Parquet is one copy that is not synced; a stream has
the copies that its namespace defines, each synced before the commit. Therefore the CPU time by
process (JVM, Python workers, bookies) and the bytes written are reported, too, as well as the time
of the same rows with a writer that only encodes entries: the lower bound of Spark's API.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from benchmarks.cluster import Phase, RunningCluster, cpu_s, descendants
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.spark_session import spark_session
from stream import Namespace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE, STREAM = "bench", "written"
_COUNT, _PAIRS, _PARTITIONS = 5_000_000, 5, 2
_FLOOR = "encode_only"


@dataclass(slots=True)
class _Use:
    """The resources used by a job, or in total until now."""

    wall_s: float
    jvm_s: float
    workers_s: float
    bookies_s: float
    bookies_bytes: int

    def since(self, before: _Use) -> _Use:
        return _Use(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))


def _written_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


class _Meter:
    def __init__(self, cluster: RunningCluster, jvm: int) -> None:
        self._servers = cluster.server_pids
        self._jvm = jvm

    def now(self) -> _Use:
        return _Use(
            time.perf_counter(),
            cpu_s(self._jvm),
            sum(map(cpu_s, descendants(self._jvm))),
            sum(map(cpu_s, self._servers)),
            sum(map(_written_bytes, self._servers)),
        )

    def use(self, job: Callable[[], None]) -> _Use:
        before = self.now()
        job()
        return self.now().since(before)


async def spark_write(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or _COUNT
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        # The output of each phase is deleted immediately, because the disk could not hold all.
        await namespace.ensure(**settings.replication)
        await namespace.ensure_stream(STREAM)
    return await trio.to_thread.run_sync(_measure, settings, cluster, count)


def _rows(spark: SparkSession, count: int, size: int) -> DataFrame:
    """Returns cached rows of one binary column that cannot be compressed."""
    hashes = ", ".join(f"unhex(sha2(concat(id, '-{n}'), 512))" for n in range(-(-size // 64)))
    rows = spark.range(0, count, 1, _PARTITIONS).selectExpr(
        f"substring(concat({hashes}), 1, {size}) AS value"
    )
    rows = rows.cache()
    assert rows.count() == count
    return rows


def _register_floor(spark: SparkSession) -> None:
    """A writer that encodes rows as the sink does, but does not send them."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Encoding(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            from connectors.spark.sink.arrow_input import input_rows
            from connectors.spark.sink.arrow_write import RowSizes, encode_rows

            for batch in iterator:
                rows = input_rows(batch)
                for first, stop in RowSizes(rows).cuts(1 << 20):
                    cut = rows.slice(first, stop - first)
                    encode_rows(cut, first_sequence=0, append_time_ms=0)
            return WriterCommitMessage()

    class EncodeOnly(DataSource):
        @classmethod
        def name(cls) -> str:
            return _FLOOR

        def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
            return Encoding()

    spark.dataSource.register(EncodeOnly)


def _measure(settings: Settings, cluster: RunningCluster, count: int) -> Measured:
    from pyspark import SparkContext

    parquet = cluster.directory / "written.parquet"
    more = {"spark.driver.memory": "5g"}
    with spark_session(cluster.directory / "spark", more) as spark:
        _register_floor(spark)
        rows = _rows(spark, count, settings.size)
        gateway: Any = SparkContext._gateway
        meter = _Meter(cluster, gateway.proc.pid)

        def to_stream() -> None:
            writer = rows.write.format("ledgerstream").mode("append")
            writer.options(cluster=cluster.uri, stream=f"{NAMESPACE}/{STREAM}").save()

        def to_parquet() -> None:
            rows.write.mode("overwrite").parquet(str(parquet))

        def to_nothing() -> None:
            rows.write.format(_FLOOR).mode("append").save()

        jobs = {"stream": to_stream, "parquet": to_parquet, _FLOOR: to_nothing}
        for job in jobs.values():  # warm the code of each
            job()
        used: dict[str, list[_Use]] = {name: [] for name in jobs}
        for _ in range(_PAIRS):
            for name, job in jobs.items():
                used[name].append(meter.use(job))
                trio.from_thread.run(cluster.wait_idle)
        parquet_bytes = sum(each.stat().st_size for each in parquet.glob("*.parquet"))
        shutil.rmtree(parquet)
    return _report(used, count, settings, parquet_bytes)


def _report(
    used: dict[str, list[_Use]], count: int, settings: Settings, parquet_bytes: int
) -> Measured:
    def median(name: str, what: str) -> float:
        numbers: list[float] = [getattr(use, what) for use in used[name]]
        return round(statistics.median(numbers), 3)

    pairs = zip(used["stream"], used["parquet"], strict=True)
    ratios = [ours.wall_s / theirs.wall_s for ours, theirs in pairs]
    floors = zip(used[_FLOOR], used["parquet"], strict=True)
    cpu = ("jvm_s", "workers_s", "bookies_s")
    more: dict[str, Any] = {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 2) for ratio in ratios],
        f"{_FLOOR}_ratio": round(
            statistics.median(floor.wall_s / theirs.wall_s for floor, theirs in floors), 3
        ),
        **{f"{name}_s": median(name, "wall_s") for name in used},
        **{f"{name}_cpu": {part: median(name, part) for part in cpu} for name in used},
        "stream_bytes_written": int(median("stream", "bookies_bytes")),
        "parquet_bytes": parquet_bytes,
    }
    phase = Phase(
        median("stream", "wall_s"),
        median("stream", "jvm_s") + median("stream", "workers_s"),
        median("stream", "bookies_s"),
    )
    return Measured(count, count * settings.size, phase, None, more)
