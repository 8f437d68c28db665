"""`micro-batches`: does a streaming query cost the same after 20,000 micro-batches as after none?

Calls sink and source as Spark does, with the results of 200 tasks of one row in each micro-batch,
without a JVM: the real one would take hours for its own part. First only the long query runs; then
a new one, with a sink and a stream of its own, takes turns with it, so that other load on the
machine affects both. The janitor of the cluster merges segments meanwhile. All rows are checked,
by what the queries read and by reading the streams from their beginning.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from benchmarks.cluster import RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from connectors.spark.options.options import ReadOptions, WriteOptions
from connectors.spark.schema import read_schema
from connectors.spark.sink.routing import Target, TargetStream
from connectors.spark.sink.sink import LedgerstreamStreamWriter, TaskCommit
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.task_results import SmallResult
from connectors.spark.sink.task_writer import TaskWriter
from connectors.spark.source.stream_reader import LedgerstreamStreamReader
from stream.blocking import EARLIEST, Namespace
from stream.core.metadata.namespaces import NamespaceMetadata

NAMESPACE: Final = "bench"
_COUNT: Final = 20_000
_TASKS: Final = 200
_COMPARED, _WARMUP = 400, 50
_STEPS: Final = ("commit", "end", "plan", "read")
_ROWS: Final = [b"%03d" % task for task in range(_TASKS)]


@dataclass(slots=True)
class _Costs:
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    wall_ms: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def measured(self, step: str) -> Iterator[None]:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        yield
        self.cpu_ms.setdefault(step, []).append((time.process_time() - cpu_s) * 1e3)
        self.wall_ms.setdefault(step, []).append((time.perf_counter() - wall_s) * 1e3)


class _Query:
    """A sink that fills a stream, and a source that reads it, one micro-batch at a time."""

    def __init__(self, uri: str, name: str, policy: NamespaceMetadata) -> None:
        self.stream, self.batches, self.costs = name, 0, _Costs()
        full = f"{NAMESPACE}/{name}"
        written = WriteOptions.parse({"cluster": uri, "stream": full}, {}, is_streaming=True)
        self._sink = LedgerstreamStreamWriter(written, StructType().add("value", "binary"), False)
        self._results = [_result(written, policy, name, task) for task in range(_TASKS)]
        read = ReadOptions.parse(
            {"cluster": uri, "streams": full, "startingPosition": "earliest"}, {}, is_streaming=True
        )
        self._source = LedgerstreamStreamReader(read, read_schema(None, read.columns))
        self._offset = self._source.initialOffset()

    def run(self) -> None:
        """Commits a micro-batch, and reads it as the next micro-batch of another query."""
        number, self.batches = self.batches, self.batches + 1
        run_id = f"run of {self.stream}"
        messages = [
            TaskCommit((), task, self.stream, number, run_id, (result,))
            for task, result in enumerate(self._results)
        ]
        with self.costs.measured("commit"):
            self._sink.commit(messages, number)
        begin, limit = self._offset, ReadAllAvailable()
        with self.costs.measured("end"):
            end = self._source.latestOffset(begin, limit)
        with self.costs.measured("plan"):
            tasks = self._source.partitions(begin, end)
        with self.costs.measured("read"):
            found = [batch for task in tasks for batch in self._source.read(task)]
        values = [value for batch in found for value in batch.column("value").to_pylist()]
        assert values == _ROWS, f"micro-batch {number} of {self.stream} has {len(values)} rows"
        self._source.commit(begin)
        self._offset = end

    def stop(self) -> None:
        self._source.stop()


def _result(options: WriteOptions, policy: NamespaceMetadata, name: str, task: int) -> SmallResult:
    known = {Target(NAMESPACE, name): TargetStream(policy)}
    writer = TaskWriter(options, SinkBatch(name, 0, "benchmark"), task, known)
    (result,) = writer.write(iter([pa.record_batch({"value": pa.array([_ROWS[task]])})]))
    assert isinstance(result, SmallResult)
    return result


async def micro_batches(settings: Settings, cluster: RunningCluster) -> Measured:
    return await trio.to_thread.run_sync(_measure, settings, cluster)


def _measure(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or _COUNT
    compared = min(_COMPARED, count)
    with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        namespace.ensure(**settings.replication)
        policy = namespace.policy()
        for name in ("long", "new"):
            namespace.create_stream(name)
        with cluster.measured() as phase:
            long = _Query(cluster.uri, "long", policy)
            while long.batches < count - compared:
                long.run()
            new = _Query(cluster.uri, "new", policy)
            for _ in range(min(_WARMUP, compared)):
                new.run()
            for query in (long, new):
                query.costs = _Costs()
            for number in range(compared):
                for query in (long, new) if number % 2 else (new, long):
                    query.run()
        for query in (long, new):
            query.stop()
        end, begin = (_shown(each.costs) | _read_whole(namespace, each) for each in (long, new))
        ratio = {name: round(end[name] / begin[name], 3) for name in end if name.endswith("_ms")}
        more = {"compared_batches": compared, "end": end, "begin": begin, "ratio": ratio}
    return Measured(count, 0, phase, more=more)


def _shown(costs: _Costs) -> dict[str, float]:
    shown = {f"{step}_cpu_ms": round(statistics.mean(costs.cpu_ms[step]), 3) for step in _STEPS}
    return shown | {
        f"{step}_p50_ms": round(statistics.median(costs.wall_ms[step]), 3) for step in _STEPS
    }


def _read_whole(namespace: Namespace, query: _Query) -> dict[str, float]:
    """Reads a stream from its beginning; returns what that costs for each of its micro-batches."""
    cpu_s, rows = time.process_time(), 0
    with namespace.reader(query.stream, start=EARLIEST) as reader:
        for batch in reader.read_to_end():
            for value in batch.values():
                assert value == _ROWS[rows % _TASKS], f"row {rows} of {query.stream}"
                rows += 1
    cpu_s = time.process_time() - cpu_s
    assert rows == query.batches * _TASKS, f"{query.stream}: {rows:,} of {query.batches:,} batches"
    info = namespace.info(query.stream)
    return {
        "batches": query.batches,
        "ledgers": info.ledgers,
        "whole_read_cpu_ms": round(cpu_s * 1e3 / query.batches, 3),
    }
