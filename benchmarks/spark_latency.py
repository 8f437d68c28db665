"""`spark-latency`: how soon Spark reads one record, and what the source adds to a micro-batch.

Runs two queries in one session, one after the other. The first is Spark's own `rate` source into
`noop`, which measures Spark's own time for a micro-batch. The second is a stream into `noop`, one
record at a time, each appended when the previous one was processed. Spark's progress has the begin
and the duration of a micro-batch. A record counts as read when its batch was processed, before
Spark records that in its checkpoint.
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from datetime import datetime
from typing import TYPE_CHECKING, Any

import trio

from benchmarks.cluster import Phase, RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.spark_session import spark_session
from stream.blocking import Namespace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

NAMESPACE, STREAM = "bench", "seen"
_COUNT, _WARMUP, _ROUNDS = 60, 10, 2
_POLL_S, _TIMEOUT_S = 0.02, 60.0
_STEPS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


async def spark_latency(settings: Settings, cluster: RunningCluster) -> Measured:
    return await trio.to_thread.run_sync(_measure, settings, cluster)


def _measure(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or _COUNT
    own: list[StreamingQueryProgress] = []
    rate: list[StreamingQueryProgress] = []
    seen_ms: list[float] = []
    with (
        spark_session(cluster.directory / "spark") as spark,
        Namespace.connect(cluster.uri, NAMESPACE) as namespace,
    ):
        namespace.ensure(**settings.replication)
        started_s = time.perf_counter()
        for number in range(_ROUNDS):  # interleaved, because the speed of the machine varies
            rate += _of_rate(spark, cluster, number, count // _ROUNDS)
            found, latencies_ms = _of_stream(
                spark, cluster, namespace, number, settings.size, count // _ROUNDS
            )
            own += found
            seen_ms += latencies_ms
        wall_s = time.perf_counter() - started_s
    overhead_ms = _median(rate, "triggerExecution")
    trigger_ms = _median(own, "triggerExecution")
    more: dict[str, Any] = {
        "rate_trigger_ms": overhead_ms,
        "trigger_ms": trigger_ms,
        "trigger_ratio": round(trigger_ms / overhead_ms, 3),
        "seen_ms": round(statistics.median(seen_ms), 1),
        "seen_above_rate_ms": round(statistics.median(seen_ms) - overhead_ms, 1),
        "rate_steps_ms": {step: _median(rate, step) for step in _STEPS},
        "steps_ms": {step: _median(own, step) for step in _STEPS},
    }
    return Measured(count, count * settings.size, Phase(wall_s=wall_s), array("d", seen_ms), more)


def _median(progress: list[StreamingQueryProgress], step: str) -> float:
    took_ms: list[int] = [each.durationMs.get(step, 0) for each in progress]
    return round(statistics.median(took_ms), 1)


def _query(frame: DataFrame, cluster: RunningCluster, name: str) -> StreamingQuery:
    writer = frame.writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(cluster.directory / "checkpoints" / name))
    return writer.start()


def _of_rate(
    spark: SparkSession, cluster: RunningCluster, number: int, count: int
) -> list[StreamingQueryProgress]:
    """Returns micro-batches of Spark's own source, which makes one of 4 rows per second."""
    frame = spark.readStream.format("rate").options(rowsPerSecond=4, numPartitions=1).load()
    query = _query(frame, cluster, f"rate-{number}")
    found: dict[int, StreamingQueryProgress] = {}
    end_s = time.monotonic() + _TIMEOUT_S + count
    try:
        while len(found) < min(count, 20) + 3 and time.monotonic() < end_s:
            time.sleep(0.2)
            found |= {each.batchId: each for each in query.recentProgress if each.numInputRows}
    finally:
        query.stop()
    return [found[batch] for batch in sorted(found)][3:]


def _of_stream(
    spark: SparkSession, cluster: RunningCluster, namespace: Namespace, number: int, size: int,
    count: int,
) -> tuple[list[StreamingQueryProgress], list[float]]:  # fmt: skip
    """Appends one record after the other; returns micro-batches, and milliseconds per record."""
    name = f"{STREAM}-{number}"
    found: list[StreamingQueryProgress] = []
    latencies_ms: list[float] = []
    pauses = random.Random(7)
    with namespace.writer(name, create=True) as writer:
        frame = (
            spark.readStream.format("ledgerstream")
            .options(cluster=cluster.uri, stream=f"{NAMESPACE}/{name}", columns="value")
            .options(startingPosition="earliest", minTasks=1)
            .load()
        )
        query = _query(frame, cluster, name)
        try:
            for _ in range(count + _WARMUP):
                before = _last_batch(query)
                appended_s = time.time()
                writer.append(bytes(size))
                progress = next_batch(query, before)
                steps = progress.durationMs
                began_s = datetime.fromisoformat(progress.timestamp).timestamp()
                took_ms = steps["triggerExecution"] - steps.get("commitOffsets", 0)
                found.append(progress)
                latencies_ms.append((began_s - appended_s) * 1e3 + took_ms)
                time.sleep(pauses.uniform(0.0, 0.1))  # an interval that is not a multiple of others
        finally:
            query.stop()
    return found[_WARMUP:], latencies_ms[_WARMUP:]


def _last_batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None or not progress.numInputRows else progress.batchId


def next_batch(query: StreamingQuery, before: int) -> StreamingQueryProgress:
    """Returns the first micro-batch with rows after `before`."""
    end_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < end_s:
        progress = query.lastProgress
        if progress is not None and progress.numInputRows and progress.batchId > before:
            return progress
        error = query.exception()
        if error is not None:
            raise error
        time.sleep(_POLL_S)
    raise TimeoutError(f"no micro-batch in {_TIMEOUT_S:g} s; last was {query.lastProgress}")
