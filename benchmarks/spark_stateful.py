"""`spark-stateful`: does a stateful query of Spark cost the same after 500 micro-batches?

A query with Spark's default of 200 shuffle partitions passes on each value of a stream once, to
another stream; each micro-batch has 200 values that are new and 200 that are not. First only the
long query runs; then a new one, with streams and a checkpoint of its own, takes turns with it in
the same session, so that other load on the machine affects both. Durations are those of Spark's
progress. Both outputs are checked: each value is there once.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import trio

from benchmarks.cluster import RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.spark_latency import next_batch
from benchmarks.spark_session import spark_session
from stream.blocking import EARLIEST, Namespace, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAMESPACE: Final = "bench"
_COUNT: Final = 500
_PARTITIONS: Final = 200
_VALUES: Final = 200
_COMPARED, _WARMUP = 40, 10
_STEPS: Final = ("triggerExecution", "latestOffset", "queryPlanning", "addBatch")


class _Query:
    """Writes each value of a stream to another stream, once."""

    def __init__(
        self, spark: SparkSession, cluster: RunningCluster, name: str, writer: StreamWriter
    ) -> None:
        self.name, self.batches, self._last_batch = name, 0, -1
        self.took_ms: dict[str, list[int]] = {step: [] for step in _STEPS}
        self._writer = writer
        frame = (
            spark.readStream.format("ledgerstream")
            .options(cluster=cluster.uri, stream=f"{NAMESPACE}/{name}", columns="value")
            .options(startingPosition="earliest")
            .load()
        )
        self._query: StreamingQuery = (
            frame.dropDuplicates(["value"])
            .writeStream.format("ledgerstream")
            .options(cluster=cluster.uri, stream=f"{NAMESPACE}/{name}-once", createStreams=True)
            .option("checkpointLocation", str(cluster.directory / "checkpoints" / name))
            .start()
        )

    def run(self) -> None:
        first = _VALUES * self.batches
        self._writer.append_many([b"%d" % (first + value) for value in range(-_VALUES, _VALUES)])
        self.batches += 1
        progress = next_batch(self._query, self._last_batch)
        self._last_batch = progress.batchId
        for step in _STEPS:
            self.took_ms[step].append(progress.durationMs.get(step, 0))

    def stop(self) -> None:
        self._query.stop()

    def shown(self) -> dict[str, float]:
        return {
            f"{step}_p50_ms": round(statistics.median(took_ms[-_COMPARED:]), 1)
            for step, took_ms in self.took_ms.items()
        } | {"batches": self.batches}


async def spark_stateful(settings: Settings, cluster: RunningCluster) -> Measured:
    return await trio.to_thread.run_sync(_measure, settings, cluster)


def _measure(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or _COUNT
    compared = min(_COMPARED, count)
    partitions = {"spark.sql.shuffle.partitions": str(_PARTITIONS)}
    with (
        spark_session(cluster.directory / "spark", partitions) as spark,
        Namespace.connect(cluster.uri, NAMESPACE) as namespace,
        ExitStack() as writers,
    ):
        namespace.ensure(**settings.replication)

        def begun(name: str) -> _Query:
            writer = writers.enter_context(namespace.writer(name, create=True))
            return _Query(spark, cluster, name, writer)

        with cluster.measured() as phase:
            long = begun("long")
            started_s = time.perf_counter()
            while long.batches < count - compared:
                long.run()
            long_s = time.perf_counter() - started_s
            new = begun("new")
            for _ in range(min(_WARMUP, compared)):
                new.run()
            for number in range(compared):
                for query in (long, new) if number % 2 else (new, long):
                    query.run()
        for query in (long, new):
            query.stop()
            _check(namespace, query)
        end, begin = long.shown(), new.shown()
        ratio = {name: round(end[name] / max(begin[name], 1), 3) for name in end if "_ms" in name}
        more: dict[str, Any] = {"end": end, "begin": begin, "ratio": ratio}
        more["seconds_per_batch"] = round(long_s / max(1, count - compared), 3)
        for name, query in (("end", long), ("begin", new)):
            more[name]["ledgers"] = namespace.info(f"{query.name}-once").ledgers
    return Measured(count, 0, phase, more=more)


def _check(namespace: Namespace, query: _Query) -> None:
    """Checks that the output has each value once."""
    with namespace.reader(f"{query.name}-once", start=EARLIEST) as reader:
        found = [int(value) for batch in reader.read_to_end() for value in batch.values()]
    assert sorted(found) == list(range(-_VALUES, _VALUES * query.batches)), f"{len(found)} values"
