"""A process is killed at each named point of a batch, and the query started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.kills.injection import EXPECTED
from tests.spark.kills.killable_source import (
    ABORT_POINTS,
    COMMIT_POINTS,
    FIRST_POINTS,
    PLAN_POINTS,
    SOURCE_POINTS,
    START_POINTS,
    TASK_POINTS,
    KillableDataSource,
)
from tests.spark.kills.orders import KillOrder, KillOrders
from tests.spark.kills.pipeline import QuerySpec, rows_of
from tests.spark.streams import Streams

pytestmark = pytest.mark.versions

VALUES = [b"%d" % number for number in range(200)]
# A query that reads two batches and ends passes all of them.
POINTS = [
    KillOrder(point, "kill")
    for points in (
        FIRST_POINTS,
        START_POINTS,
        SOURCE_POINTS,
        PLAN_POINTS,
        TASK_POINTS,
        COMMIT_POINTS,
    )
    for point in points
] + [KillOrder(point, "kill", provoked_by="commit, after") for point in ABORT_POINTS]
FAILURES = [KillOrder(point, "raise") for point in COMMIT_POINTS]


class Pipeline:
    """A stream of two segments, copied by a query of the shared session."""

    def __init__(self, spark: SparkSession, streams: Streams, directory: Path) -> None:
        spark.dataSource.register(KillableDataSource)
        self._spark = spark
        self._streams = streams
        self._directory = directory
        self.orders = KillOrders(directory / "orders")
        source = streams.written(VALUES, segments=2)
        self.target = streams.create("copy")
        both = {"cluster": streams.cluster, "orders": str(directory / "orders")}
        read = {
            **both, "stream": source, "startingPosition": "earliest",
            "maxRecordsPerTrigger": "150", "minTasks": "2", "rowsPerBatch": "20",
        }  # fmt: skip
        self._read = read
        self._write = {**both, "stream": self.target}

    def start(self, **options: str) -> StreamingQuery:
        spec = QuerySpec("copy", "plain", "", self.target, self._read, self._write | options)
        writer = rows_of(self._spark, spec).writeStream.format("killable").options(**spec.write)
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def run(self, **options: str) -> None:
        """Copies all records. Raises the error of the query.

        Tries again if Spark did not wait long enough for a process on a busy machine.
        """
        for tries_left in reversed(range(5)):
            try:
                self.start(**options).awaitTermination()
            except StreamingQueryException as error:
                if tries_left == 0 or "failed to connect back" not in str(error):
                    raise
            else:
                return

    def run_into_death(self, order: KillOrder, **options: str) -> None:
        """Runs the query with an order to obey; the query may survive it."""
        self.orders.give(order)
        try:
            self.run(**options)
        except Exception as error:
            if not any(known in repr(error) + str(error) for known in EXPECTED):
                raise
        assert self.orders.taken() is not None, f"no process reached {order.point}"

    def values(self) -> list[bytes]:
        return self._streams.values(self.target)


@pytest.fixture
def pipeline(spark: SparkSession, streams: Streams, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, streams, tmp_path)


@pytest.mark.parametrize("order", POINTS + FAILURES, ids=lambda order: f"{order.way} {order.point}")
def test_after_a_kill_the_output_is_the_input(pipeline: Pipeline, order: KillOrder) -> None:
    pipeline.run_into_death(order)
    pipeline.run()
    assert pipeline.values() == VALUES


def doubled(pipeline: Pipeline) -> None:
    pipeline.run_into_death(KillOrder("commit, after", "raise"), bug="forgets")
    pipeline.run(bug="forgets")


def lost(pipeline: Pipeline) -> None:
    pipeline.run(bug="loses")


@pytest.mark.parametrize("misdo", [doubled, lost])
def test_a_faulty_sink_is_detected(pipeline: Pipeline, misdo: Callable[[Pipeline], None]) -> None:
    misdo(pipeline)
    values = pipeline.values()
    assert values != VALUES
    assert set(values) <= set(VALUES)
